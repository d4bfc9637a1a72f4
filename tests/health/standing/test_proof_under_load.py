"""A fault that shows under load alone is answered by a burn-in or by the same load without it, never by idling."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from health.replay.replay import Replay
from health.replay.stream import Burned, Moved, Passed, Sampled
from health.standing.counterfactual import recovery_paths
from health.standing.gpu_case import BurnInResult, GpuCase, MoveReason, PastRepair
from health.standing.proof_under_load import unproved
from health.standing.standing import decide
from health.standing.what_if import Kind, Situation, after
from muster.domain.evidence.findings import EventKind, Evidence, GpuSignal, Severity, Source, Trust
from muster.domain.ids import EvidenceId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Standing
from tests.health.case_factory import (
    DAY,
    GPU,
    HOUR,
    MINUTE,
    NODE,
    NOW_MS,
    POLICY,
    SECOND,
    as_fault,
    case,
    evidence,
    fall,
    sample,
    signal,
)

_HOT: Final = 0x40
_TIER: Final = DEFAULT_POLICY.tiers["on_demand"]


def job_that_heats(begins_ms: int) -> Iterator[Sampled]:
    """Ten minutes of work with the clocks held down by heat in each sample, then rest."""
    for number in range(60):
        yield Sampled(NODE, sample(begins_ms + number * 10 * SECOND, clock_event_reasons=_HOT))
    yield Sampled(NODE, sample(begins_ms + 10 * MINUTE, clock_event_reasons=0.0))


def moves_of(world: Replay, *inputs: object) -> list[tuple[Standing, MoveReason]]:
    found = [each for given in inputs for each in world.take(given) if isinstance(each, Moved)]  # type: ignore[arg-type]
    return [(each.move.to_standing, each.move.reason) for each in found]


def test_hardware_throttling_in_each_jobs_load_does_not_come_back_by_rest() -> None:
    world = Replay(POLICY)
    told = moves_of(world, *job_that_heats(NOW_MS), Passed(NOW_MS + 30 * DAY))
    assert told == [(Standing.SUSPECT, MoveReason.LOW_SCORE)]


def test_hardware_throttling_once_in_16_hours_is_flapping_at_the_third_job_though_each_burn_in_passes() -> None:
    world, told = Replay(POLICY), list[tuple[Standing, MoveReason]]()
    for number in range(8):
        begins_ms = NOW_MS + number * 16 * HOUR
        told += moves_of(world, *job_that_heats(begins_ms))
        if told[-1][0] is Standing.QUARANTINED:
            break
        passed = BurnInResult(begins_ms + HOUR, begins_ms + HOUR + 5 * MINUTE, has_passed=True)
        told += moves_of(world, Burned(GPU, passed, NODE), Passed(begins_ms + 15 * HOUR))
    suspect, back = (Standing.SUSPECT, MoveReason.LOW_SCORE), (Standing.HEALTHY, MoveReason.RECOVERED)
    assert told == [suspect, back, suspect, back, suspect, (Standing.QUARANTINED, MoveReason.FLAPPING)]


def suspect(*found: Evidence, **changes: object) -> GpuCase:
    """SUSPECT by ``found`` since it was seen, a week ago: all of it has decayed."""
    fallen_ms = NOW_MS - 8 * DAY
    gpu = case(Standing.SUSPECT, *found, since_ms=fallen_ms, origin=Standing.HEALTHY)
    gpu = replace(gpu, moves=(fall(fallen_ms, *(each.id for each in found)),))
    return replace(gpu, **changes)  # type: ignore[arg-type]  # by the names of its fields


def of(detector: str, at_ms: int = NOW_MS - 8 * DAY, **values: float) -> Evidence:
    return evidence(detector, Severity.DEGRADED, at_ms=at_ms, detector=detector, fault=detector, values=values)


CONTAINED: Final = as_fault(of("xid", code=94.0), "xid:94")
WIDTH: Final = as_fault(of("pcie_link"), "pcie_link:width")


@pytest.mark.parametrize("found", [CONTAINED, WIDTH, of("clock_events"), of("thermal_margin"), of("nvlink_crc")])
def test_time_alone_does_not_answer_what_shows_under_load(found: Evidence) -> None:
    assert unproved(suspect(found), POLICY) == (found,)
    assert decide(suspect(found), NOW_MS, POLICY) is None


@pytest.mark.parametrize("found", [as_fault(of("xid", code=165.0), "xid:165"), of("fabric_state")])
def test_time_answers_what_needs_no_load(found: Evidence) -> None:
    move = decide(suspect(found), NOW_MS, POLICY)
    assert move is not None
    assert (move.to_standing, move.reason) == (Standing.HEALTHY, MoveReason.RECOVERED)


def test_xid_94_reported_once_waits_for_its_burn_in_and_is_back_with_it() -> None:
    world = Replay(POLICY)
    assert moves_of(world, signal(code=94, source=Source.KERNEL_LOG)) == [(Standing.SUSPECT, MoveReason.LOW_SCORE)]
    assert moves_of(world, Passed(NOW_MS + 10 * DAY)) == []
    began_ms = NOW_MS + 10 * DAY
    passed = Burned(GPU, BurnInResult(began_ms, began_ms + MINUTE, has_passed=True), NODE)
    assert moves_of(world, passed) == [(Standing.HEALTHY, MoveReason.RECOVERED)]


def width(at_ms: int, lanes: float) -> GpuSignal:
    return signal(EventKind.GPU_STATE, at_ms=at_ms, pcie_loaded_width=lanes, pcie_max_width=16.0)


def test_a_pcie_link_of_8_lanes_waits_until_16_are_seen_under_load() -> None:
    world = Replay(POLICY)
    hours = [width(NOW_MS + hour * HOUR, 8.0) for hour in range(3)]
    assert moves_of(world, *hours) == [(Standing.SUSPECT, MoveReason.LOW_SCORE)]
    assert moves_of(world, Passed(NOW_MS + 10 * DAY)) == []
    told = moves_of(world, width(NOW_MS + 10 * DAY, 16.0), Passed(NOW_MS + 20 * DAY))
    assert told == [(Standing.HEALTHY, MoveReason.RECOVERED)]


@pytest.mark.parametrize(("began_ms", "answers"), [(0, False), (1, True)])
def test_only_a_burn_in_that_began_after_the_newest_finding_answers_it(began_ms: int, *, answers: bool) -> None:
    passed = BurnInResult(CONTAINED.last_seen_ms + began_ms, NOW_MS - DAY, has_passed=True)
    assert (unproved(suspect(CONTAINED, burn_ins=(passed,)), POLICY) == ()) is answers
    failed = replace(passed, has_passed=False)
    assert unproved(suspect(CONTAINED, burn_ins=(failed,)), POLICY)


def test_where_the_burn_in_could_not_run_time_counts_again() -> None:
    before, since = CONTAINED.last_seen_ms - 1, CONTAINED.last_seen_ms + HOUR
    assert decide(suspect(CONTAINED, could_not_burn_in_ms=before), NOW_MS, POLICY) is None
    assert decide(suspect(CONTAINED, could_not_burn_in_ms=since), NOW_MS, POLICY) is not None


def test_a_repair_a_dismissal_or_a_suspicion_answers_too() -> None:
    repair = PastRepair("memory", NOW_MS - 7 * DAY, NOW_MS - 6 * DAY, is_done=True)
    assert unproved(suspect(CONTAINED, repairs=(repair,)), POLICY) == ()
    for taken_out in ({"is_dismissed": True}, {"is_suspended": True}):
        assert unproved(suspect(replace(CONTAINED, **taken_out)), POLICY) == ()  # type: ignore[arg-type]


def test_what_only_warns_or_is_reported_or_came_before_the_fall_requests_none() -> None:
    for other in (
        replace(CONTAINED, severity=Severity.WARNING),
        replace(CONTAINED, trust=Trust.REPORTED),
        replace(WIDTH, closed_at_ms=NOW_MS - DAY),
    ):
        assert unproved(suspect(other), POLICY) == ()
    old = replace(CONTAINED, id=EvidenceId("ev_old"), last_seen_ms=NOW_MS - 9 * DAY)
    assert unproved(replace(suspect(CONTAINED), evidence=(old,)), POLICY) == ()
    assert unproved(replace(suspect(CONTAINED), standing=Standing.HEALTHY), POLICY) == ()


def test_the_counterfactual_names_the_burn_in_and_what_if_agrees() -> None:
    situation = Situation(suspect(CONTAINED))
    ways = recovery_paths(situation, _TIER, NOW_MS, POLICY)
    kinds = [{each.kind for each in way.conditions} for way in ways]
    assert {Kind.BURN_IN} in kinds
    assert {Kind.TIME} not in kinds
    (burn_in,) = next(way.conditions for way in ways if {each.kind for each in way.conditions} == {Kind.BURN_IN})
    assert "shows under load alone" in burn_in.text
    for way in ways:
        assert after(situation, way.conditions, NOW_MS, POLICY).gpu.standing is Standing.HEALTHY
    assert after(situation, (), NOW_MS, POLICY).gpu.standing is Standing.SUSPECT
