"""The return to service is computed once a minute for all callers, and again when anything it depends on changes."""

from dataclasses import replace

import pytest

from control.fleet import gpu_admission
from control.fleet.gpu_admission import TierAdmission, by_ways
from health.standing.counterfactual import RecoveryPath
from health.standing.what_if import Situation
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Contact, Standing
from tests.health.case_factory import MINUTE, NOW_MS, case, condemning


def test_what_was_found_in_this_minute_is_reported_again_until_anything_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def counted(_situation: Situation, _tier: object, now_ms: int, _policy: object) -> tuple[RecoveryPath, ...]:
        asked.append(now_ms)
        return ()

    monkeypatch.setattr(gpu_admission, "recovery_paths", counted)
    found = gpu_admission.FoundWays()
    situation = Situation(case(Standing.QUARANTINED, condemning("ecc")))

    def ask(situation: Situation, now_ms: int) -> int:
        for tier in DEFAULT_POLICY.tiers.values():
            found.ways(situation, tier, now_ms, DEFAULT_POLICY)
        return len(asked)

    start_ms = NOW_MS - NOW_MS % MINUTE
    once = ask(situation, start_ms)
    assert ask(replace(situation), start_ms + MINUTE - 1) == once
    assert ask(situation, start_ms + MINUTE) == 2 * once
    assert ask(replace(situation, contact=Contact.LOST), start_ms + MINUTE) == 3 * once


def test_tiers_with_equal_conditions_of_return_are_named_together_and_one_that_takes_it_is_not() -> None:
    situation = Situation(case(Standing.QUARANTINED, condemning("ecc")))
    policy = DEFAULT_POLICY
    name, tier = next(iter(policy.tiers.items()))
    ways = gpu_admission.FoundWays().ways(situation, tier, NOW_MS, policy)
    assert ways
    admissions = [TierAdmission(name, (), ways), TierAdmission("busy", (), ()), TierAdmission("alike", (), list(ways))]
    assert by_ways(admissions) == {tuple(ways): [name, "alike"]}
