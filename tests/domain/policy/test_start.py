"""The policy of a start: what would keep every job of a tier from ever starting is refused."""

import pytest
from pydantic import ValidationError

from muster.domain.policy.document import QUICK_CHECK_START_S, Policy


def policy(ready_within_s: float, quick_check_s: float) -> Policy:
    tiers = {"reserved": {"priority": 1, "quick_check_s": quick_check_s}}
    return Policy.model_validate({"dispatch": {"ready_within_s": ready_within_s}, "tiers": tiers}, strict=False)


def test_a_quick_check_must_fit_into_the_time_to_get_ready() -> None:
    assert policy(QUICK_CHECK_START_S + 10.5, 10.0).tier("reserved").quick_check_s == 10.0
    assert policy(1.0, 0.0).dispatch.ready_within_s == 1.0
    with pytest.raises(ValidationError, match=r"dispatch.ready_within_s must exceed each tier's quick_check_s \+ 30"):
        policy(QUICK_CHECK_START_S + 10, 10.0)


def test_a_quick_check_takes_a_minute_at_most() -> None:
    assert policy(120.0, 30.0).tier("reserved").quick_check_s == 30.0
    with pytest.raises(ValidationError, match="quick_check_s"):
        policy(120.0, 31.0)


def meeting_policy(ready_within_s: float, pairwise_check_s: float, rounds_max: int = 4) -> Policy:
    tiers = {"reserved": {"priority": 1, "pairwise_check_s": pairwise_check_s}}
    dispatch = {"ready_within_s": ready_within_s, "pairwise": {"rounds_max": rounds_max}}
    return Policy.model_validate({"dispatch": dispatch, "tiers": tiers}, strict=False)


def test_a_pairwise_check_with_all_its_rounds_must_fit_into_the_time_to_get_ready() -> None:
    assert meeting_policy(120.5, 20.0).tier("reserved").pairwise_check_s == 20.0
    assert meeting_policy(1.0, 0.0).dispatch.ready_within_s == 1.0
    with pytest.raises(ValidationError, match=r"\(pairwise_check_s \+ 10\), which of the tier reserved are 120 s"):
        meeting_policy(120.0, 20.0)
    assert meeting_policy(120.0, 20.0, rounds_max=3).dispatch.pairwise.rounds_max == 3


def test_a_tier_with_both_checks_needs_the_time_of_both() -> None:
    tiers = {"reserved": {"priority": 1, "pairwise_check_s": 15.0, "quick_check_s": 5.0}}
    with pytest.raises(ValidationError, match="which of the tier reserved are 135 s"):
        Policy.model_validate({"dispatch": {"ready_within_s": 130.0}, "tiers": tiers}, strict=False)
    enough = Policy.model_validate({"dispatch": {"ready_within_s": 136.0}, "tiers": tiers}, strict=False)
    assert enough.dispatch.ready_within_s == 136.0


def test_what_hosts_give_to_a_gather_is_whole_words() -> None:
    with pytest.raises(ValidationError, match="gather_bytes"):
        Policy.model_validate({"dispatch": {"pairwise": {"gather_bytes": 6}}})
