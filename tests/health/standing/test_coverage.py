"""A proof answers only what it tested: open evidence that a burn-in does not cover stays, and keeps counting."""

from dataclasses import replace
from typing import Final

import pytest

from health.standing.gpu_case import ALL_STAGES, EVERY_GROUP, BurnInResult, GpuCase, PastRepair, condemning_of, weighed
from health.standing.proof_under_load import unproved, untested
from health.standing.standing import decide
from muster.domain.evidence.findings import Evidence, Severity
from muster.domain.evidence.traits import FaultGroup
from muster.domain.states import Standing
from tests.health.case_factory import DAY, HOUR, MINUTE, NOW_MS, POLICY, as_fault, case, condemning, evidence, fall

FALLEN_MS: Final = NOW_MS - 8 * DAY
OF_GROUP: Final = {
    FaultGroup.MEMORY: "xid:95",
    FaultGroup.BUS: "xid:79",
    FaultGroup.LINK: "xid:74",
    FaultGroup.DRIVER: "xid:119",
    FaultGroup.OTHER: "xid:54",
}


def passed(*left_out: FaultGroup, began_ms: int = NOW_MS - DAY) -> BurnInResult:
    covers = EVERY_GROUP - set(left_out)
    return BurnInResult(began_ms, began_ms + MINUTE, has_passed=True, covers=covers)


def suspect(found: Evidence, *burn_ins: BurnInResult) -> GpuCase:
    gpu = case(Standing.SUSPECT, found, since_ms=FALLEN_MS, origin=Standing.HEALTHY)
    return replace(gpu, moves=(fall(FALLEN_MS, found.id),), burn_ins=burn_ins)


def hot(at_ms: int = FALLEN_MS) -> Evidence:
    return evidence("hot", Severity.DEGRADED, at_ms=at_ms, detector="clock_events", fault="clock_events:hw_thermal")


def test_a_burn_in_that_read_no_clocks_leaves_an_open_thermal_fault() -> None:
    without = suspect(hot(), passed(FaultGroup.CLOCKS))
    assert decide(without, NOW_MS, POLICY) is None
    assert unproved(without, POLICY) == (hot(),)
    assert untested(without, POLICY) == (), "another burn-in would show no more"
    fresh = suspect(hot(NOW_MS - 2 * HOUR), passed(FaultGroup.CLOCKS, began_ms=NOW_MS - HOUR))
    assert weighed(fresh, POLICY, NOW_MS).value < POLICY.score.lower_line, "it keeps counting"


@pytest.mark.parametrize("closed_ms", [None, FALLEN_MS + HOUR])
@pytest.mark.parametrize("left_out", [(), (FaultGroup.CLOCKS,)])
def test_it_answers_what_it_covers_and_what_was_seen_to_be_over(
    left_out: tuple[FaultGroup, ...], closed_ms: int | None
) -> None:
    """Agents of release 0.1.0 read no clocks: their burn-ins answer a fault that is over, as before."""
    move = decide(suspect(replace(hot(), closed_at_ms=closed_ms), passed(*left_out)), NOW_MS, POLICY)
    assert (move is not None) is (not left_out or closed_ms is not None)
    assert move is None or move.to_standing is Standing.HEALTHY


def test_what_is_stated_again_after_it_is_to_be_tested_again() -> None:
    again = suspect(hot(NOW_MS - HOUR), passed(FaultGroup.CLOCKS))
    assert untested(again, POLICY) == unproved(again, POLICY) != ()


def test_errors_of_nvlinks_which_no_burn_in_uses_weigh_until_they_have_decayed() -> None:
    """Their end is never stated, so time decides once a burn-in has passed: no GPU waits without end."""
    crc = evidence("crc", Severity.DEGRADED, at_ms=NOW_MS - HOUR, detector="nvlink_crc", fault="nvlink_crc")
    gpu = replace(suspect(crc, passed(FaultGroup.LINK, began_ms=NOW_MS - MINUTE)), since_ms=NOW_MS - HOUR)
    assert decide(gpu, NOW_MS, POLICY) is None
    assert unproved(gpu, POLICY) == ()
    move = decide(gpu, NOW_MS + 2 * DAY, POLICY)
    assert move is not None
    assert move.to_standing is Standing.HEALTHY


@pytest.mark.parametrize("group", OF_GROUP)
def test_a_quarantine_ends_by_a_burn_in_that_covers_what_condemns_or_by_a_repair(group: FaultGroup) -> None:
    found = as_fault(condemning("found", NOW_MS - 2 * DAY), OF_GROUP[group])
    assert found.traits.group is group
    gpu = case(Standing.QUARANTINED, found, since_ms=NOW_MS - 2 * DAY)
    without = replace(gpu, burn_ins=(passed(group),))
    assert decide(without, NOW_MS, POLICY) is None
    assert condemning_of(without) == (found,)
    move = decide(replace(gpu, burn_ins=(passed(),)), NOW_MS, POLICY)
    assert move is not None
    assert move.to_standing is Standing.PROBATION
    repair = PastRepair(group, NOW_MS - DAY - HOUR, NOW_MS - DAY - MINUTE, is_done=True)
    assert condemning_of(replace(without, repairs=(repair,))) == ()


def test_the_stages_of_a_burn_in_leave_nvlinks_out() -> None:
    assert {FaultGroup.LINK} == EVERY_GROUP - ALL_STAGES
