"""The policy of a start: what would keep every job of a tier from ever starting is refused."""

import pytest
from pydantic import ValidationError

from muster.domain.policy import QUICK_CHECK_START_S, Policy


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
