"""The judgement played again: what the rules would have done, when, and that time alone does it too."""

from collections.abc import Iterable
from dataclasses import replace

from health.replay.replay import Replay
from health.replay.stream import (
    Burned,
    Input,
    Maintained,
    Moved,
    Opened,
    Output,
    Passed,
    Placed,
    ReplayLine,
    RuleCordon,
    Sampled,
    Scored,
)
from health.standing.gpu_case import BurnInResult, MoveReason
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Standing
from tests.health.case_factory import DAY, GPU, MINUTE, NODE, NOW_MS, POLICY, SECOND, sample, signal


def played(*given: Input, until_ms: int | None = None) -> list[Output]:
    return played_by(Replay(POLICY), given, until_ms=until_ms)


def played_by(world: Replay, given: Iterable[Input], until_ms: int | None = None) -> list[Output]:
    found = [each for one in given for each in world.take(one)]
    return found if until_ms is None else [*found, *world.take(Passed(until_ms))]


def moves(found: list[Output]) -> list[tuple[int, Standing, MoveReason]]:
    return [(each.at_ms, each.move.to_standing, each.move.reason) for each in found if isinstance(each, Moved)]


def reported(found: list[Output]) -> list[tuple[str, str, int]]:
    return [
        (each.what, each.evidence.fault_key, len(each.evidence.sources))
        for each in found
        if isinstance(each, ReplayLine)
    ]


def test_a_fault_reported_by_two_sources_is_one_evidence_and_one_move() -> None:
    found = played(signal(code=95), signal(code=95, source=Source.KERNEL_LOG, at_ms=NOW_MS + SECOND))
    assert reported(found) == [("new", "xid:95", 1), ("joined", "xid:95", 2)]
    assert moves(found) == [(NOW_MS, Standing.QUARANTINED, MoveReason.CONDEMNED)]
    assert [each.score.value for each in found if isinstance(each, Scored)] == [0.0]


def test_an_event_that_comes_again_has_no_effect() -> None:
    assert len(played(signal(code=95), signal(code=95))) == len(played(signal(code=95)))


def test_a_burn_in_brings_it_back_and_probation_ends_by_time_alone() -> None:
    began, ended = NOW_MS + MINUTE, NOW_MS + 2 * MINUTE
    found = played(
        signal(code=95), Burned(GPU, BurnInResult(began, ended, has_passed=True), NODE), until_ms=ended + 60 * DAY
    )
    over_ms = ended + int(POLICY.standing.probation_s * 1000)
    assert moves(found)[1:] == [
        (ended, Standing.PROBATION, MoveReason.BURN_IN_PASSED),
        (over_ms, Standing.HEALTHY, MoveReason.PROBATION_OVER),
    ]


def test_a_standing_fault_makes_suspect_and_its_end_lets_the_gpu_recover_when_it_would() -> None:
    standing = [Sampled(NODE, sample(NOW_MS + at * MINUTE, remap_pending=1.0)) for at in range(5)]
    over = Sampled(NODE, sample(NOW_MS + 5 * MINUTE, remap_pending=0.0))
    found = played(*standing, over, until_ms=NOW_MS + 90 * DAY)
    assert [one[0] for one in reported(found)] == ["new", "closed"]
    assert [to for _, to, _ in moves(found)] == [Standing.SUSPECT, Standing.HEALTHY]
    assert moves(found)[1][0] > NOW_MS + 5 * MINUTE + int(POLICY.standing.raise_dwell_s * 1000)


def test_what_comes_late_judges_no_sample() -> None:
    before = Sampled(NODE, sample(NOW_MS, ecc_uncorrected_volatile=0.0))
    rise = Sampled(NODE, sample(NOW_MS + MINUTE, ecc_uncorrected_volatile=3.0))
    assert reported(played(before, rise)) == [("new", "ecc_uncorrected", 1)]
    assert reported(played(before, replace(rise, is_history=True))) == []


def test_a_gpu_stands_where_a_record_places_it() -> None:
    placed = Placed(NOW_MS, GPU, NODE, Standing.PROBATION)
    found = played(placed, until_ms=NOW_MS + 60 * DAY)
    assert moves(found) == [
        (NOW_MS + int(POLICY.standing.probation_s * 1000), Standing.HEALTHY, MoveReason.PROBATION_OVER)
    ]


def test_a_gpu_is_judged_by_the_maximum_that_it_reports_itself() -> None:
    state = signal(EventKind.GPU_STATE, at_ms=NOW_MS, temperature_max_c=88.0)
    hot = Sampled(NODE, sample(NOW_MS + SECOND, temperature_c=90.0))
    placed = Placed(NOW_MS, GPU, NODE, Standing.HEALTHY, "NVIDIA H100 80GB HBM3")
    found = [played(*given) for given in ((placed, hot), (placed, state, hot), (state, placed, hot))]
    assert [[key for _, key, _ in reported(each)] for each in found] == [[], ["temperature:gpu"], ["temperature:gpu"]]


def test_a_gpu_is_judged_by_its_models_limits() -> None:
    limits = POLICY.detectors.temperature
    hot = Sampled(NODE, sample(NOW_MS + MINUTE, temperature_c=limits.gpu_max_c_of["A100"] + 1))
    found = [played(Placed(NOW_MS, GPU, NODE, Standing.HEALTHY, model), hot) for model in ("", "NVIDIA A100-SXM4-80GB")]
    assert [[key for _, key, _ in reported(each)] for each in found] == [[], ["temperature:gpu"]]


def test_the_breaker_holds_back_what_is_beyond_its_cap_and_proposes_each_once() -> None:
    world = Replay(POLICY)
    uuids = [GpuUuid(f"GPU-{number:03}") for number in range(100)]
    placed = [Placed(NOW_MS, uuid, NODE, Standing.HEALTHY) for uuid in uuids]
    storm = [signal(code=79, gpu=uuid, at_ms=NOW_MS + at) for at, uuid in enumerate(uuids)]
    found = played_by(world, [*placed, *(replace(each, signal_id=f"{each.gpu_uuid}") for each in storm)])
    made = [each for each in found if isinstance(each, Moved) and not each.is_proposed]
    held = [each for each in found if isinstance(each, Moved) and each.is_proposed]
    opened = [each for each in found if isinstance(each, Opened)]
    assert len(made) == min(opened[0].incident.caps.values())
    assert len(made) + len(held) == len(uuids)
    later = list(world.take(Passed(NOW_MS + 10 * MINUTE)))
    assert all(not (isinstance(each, Moved) and each.is_proposed) for each in later)


def test_a_fault_of_a_node_is_kept_and_moves_no_gpu() -> None:
    lost = signal(EventKind.GPU_COUNT, gpu=None, before=8.0, now=7.0)
    found = played(lost)
    assert reported(found) == [("new", "gpu_count", 1)]
    assert moves(found) == []


def test_the_same_records_give_the_same_answer() -> None:
    given = [signal(code=code, at_ms=NOW_MS + code * SECOND) for code in (31, 63, 94, 48)]
    assert played(*given, until_ms=NOW_MS + 60 * DAY) == played(*given, until_ms=NOW_MS + 60 * DAY)


def test_what_is_found_in_a_maintenance_window_moves_nothing_and_weighs_after_it_only_where_it_still_stands() -> None:
    window = Maintained(NOW_MS, NODE, NOW_MS + 10 * MINUTE)
    moment = signal(code=95, at_ms=NOW_MS + MINUTE)
    assert moves(played(window, moment, until_ms=NOW_MS + DAY)) == []
    state = signal(EventKind.GPU_STATE, at_ms=NOW_MS + MINUTE, sram_threshold_exceeded=1.0)
    assert moves(played(state, until_ms=NOW_MS + 2 * MINUTE)) != [], "else it moves the GPU at once"
    longer = Maintained(NOW_MS + 5 * MINUTE, NODE, NOW_MS + 20 * MINUTE)
    found = moves(played(window, state, longer, until_ms=NOW_MS + DAY))
    assert found[0][0] == NOW_MS + 20 * MINUTE, "at the end of the last of them"
    over = signal(EventKind.GPU_STATE, at_ms=NOW_MS + 2 * MINUTE, sram_threshold_exceeded=0.0)
    assert moves(played(window, state, over, until_ms=NOW_MS + DAY)) == []


def test_a_window_of_another_node_changes_nothing() -> None:
    window = Maintained(NOW_MS, NodeId("node_other"), NOW_MS + DAY)
    assert moves(played(window, signal(code=95, at_ms=NOW_MS + MINUTE))) != []


def ports(found: float, at_ms: int = NOW_MS) -> Input:
    return signal(
        EventKind.HOST_STATE, gpu=None, at_ms=at_ms, source=Source.HOST, expected_ports=8.0, found_ports=found
    )


def assigned(found: list[Output]) -> list[tuple[int, list[str]]]:
    return [(each.at_ms, [one.fault_key for one in each.by]) for each in found if isinstance(each, RuleCordon)]


def test_what_is_found_about_a_node_holds_it_once_it_has_lasted_and_until_it_is_over() -> None:
    lasts_ms = int(POLICY.warm_up.outlast_s * 1000)
    over_ms = NOW_MS + lasts_ms + MINUTE
    assert assigned(played(ports(7), ports(8, NOW_MS + lasts_ms - 1), until_ms=NOW_MS + DAY)) == []
    assert assigned(played(ports(7), ports(8, over_ms), until_ms=NOW_MS + DAY)) == [
        (NOW_MS + lasts_ms, ["port_count"]),
        (over_ms, []),
    ]


def test_what_is_notified_of_a_node_no_more_holds_it_no_longer_than_the_policy_states() -> None:
    (_, free) = assigned(played(ports(7), until_ms=NOW_MS + 30 * DAY))
    assert free == (NOW_MS + int(POLICY.rule_cordon.state_fault_s * 1000), [])


def test_a_window_that_ends_lets_what_stands_hold_its_node() -> None:
    window = Maintained(NOW_MS - MINUTE, NODE, NOW_MS + 60 * MINUTE)
    found = played(window, ports(7), until_ms=NOW_MS + 61 * MINUTE)
    assert assigned(found) == [(NOW_MS + 60 * MINUTE, ["port_count"])]


def test_a_burn_in_of_a_gpu_that_nothing_was_stated_of_counts() -> None:
    world = Replay(POLICY, standing=Standing.UNPROVEN)
    result = BurnInResult(NOW_MS, NOW_MS + MINUTE, has_passed=True)
    found = played_by(world, [Passed(NOW_MS - MINUTE), Burned(GPU, result, NODE)])
    assert moves(found) == [(NOW_MS + MINUTE, Standing.PROBATION, MoveReason.BURN_IN_PASSED)]
