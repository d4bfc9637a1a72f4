"""Two GPUs of one node at fault: the node is held, explained, for as long as both are."""

from dataclasses import replace

import pytest

from health.detectors.node import gpus_at_fault
from health.replay.replay import Replay
from health.replay.stream import Burned, Passed, RuleCordon
from health.standing.gpu_case import BurnInResult
from health.standing.rule_cordon import holding
from muster.domain.evidence.findings import EventKind, Evidence, GpuSignal, Severity, Source, Trust
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from tests.health.case_factory import DAY, HOUR, MINUTE, NODE, NOW_MS, POLICY, condemning


def fatal(number: int, code: int, at_ms: int, node: NodeId = NODE) -> GpuSignal:
    gpu = GpuUuid(f"GPU-{number}")
    return GpuSignal(f"{number}:{at_ms}", EventKind.XID, Source.KERNEL_LOG, at_ms, node, gpu, code=code)


def assigned(world: Replay, *inputs: object) -> list[list[str]]:
    found = [each for given in inputs for each in world.take(given) if isinstance(each, RuleCordon)]  # type: ignore[arg-type]
    return [[evidence.fault_key for evidence in each.by] for each in found]


def of(number: int, at_ms: int = NOW_MS) -> Evidence:
    return replace(condemning(f"{number}:{at_ms}", at_ms), gpu_uuid=GpuUuid(f"GPU-{number}"))


@pytest.mark.parametrize(("apart_ms", "found"), [(DAY, 1), (DAY + 1, 0)])
def test_two_gpus_condemned_within_a_day_are_the_nodes(apart_ms: int, found: int) -> None:
    told = gpus_at_fault.judge(NODE, [of(1), of(2, NOW_MS + apart_ms)], POLICY, NOW_MS + apart_ms)
    assert [(each.gpu_uuid, each.severity, each.fault_key) for each in told] == [
        (None, Severity.DEGRADED, "gpus_at_fault:2")
    ] * found


def test_one_gpu_again_and_again_is_no_two() -> None:
    assert gpus_at_fault.judge(NODE, [of(1), of(1, NOW_MS + HOUR), of(1, NOW_MS + 1)], POLICY, NOW_MS) == ()


def test_three_gpus_off_the_bus_or_without_gsp_hold_their_node_and_it_is_stated_why() -> None:
    world = Replay(POLICY)
    told = assigned(world, fatal(1, 79, NOW_MS), fatal(2, 79, NOW_MS + MINUTE), fatal(3, 119, NOW_MS + 2 * MINUTE))
    assert told == [["gpus_at_fault:2"], ["gpus_at_fault:3"]]


def test_gpus_of_two_nodes_are_no_nodes_fault() -> None:
    assert assigned(Replay(POLICY), fatal(1, 79, NOW_MS), fatal(2, 79, NOW_MS, NodeId("node_other"))) == []


def test_the_node_is_free_once_one_of_the_two_is_proved_and_not_by_time() -> None:
    world = Replay(POLICY)
    assert assigned(world, fatal(1, 79, NOW_MS), fatal(2, 79, NOW_MS)) == [["gpus_at_fault:2"]]
    assert assigned(world, Passed(NOW_MS + 3 * DAY)) == []
    passed = BurnInResult(NOW_MS + 3 * DAY, NOW_MS + 3 * DAY + HOUR, has_passed=True)
    assert assigned(world, Burned(GpuUuid("GPU-1"), passed, NODE)) == [[]]


@pytest.mark.parametrize(("mode", "count"), [("shadow", 1), ("off", 0)])
def test_in_shadow_it_is_reported_and_holds_nothing(mode: str, count: int) -> None:
    rule = POLICY.detectors.gpus_at_fault.model_copy(update={"mode": mode})
    policy: HealthPolicy = POLICY.model_copy(
        update={"detectors": POLICY.detectors.model_copy(update={"gpus_at_fault": rule})}
    )
    assert len(gpus_at_fault.judge(NODE, [of(1), of(2)], policy, NOW_MS)) == count
    assert assigned(Replay(policy), fatal(1, 79, NOW_MS), fatal(2, 79, NOW_MS)) == []


def test_what_is_reported_condemns_no_gpu_and_so_no_node() -> None:
    evidence = replace(of(1), trust=Trust.REPORTED)
    assert holding([evidence], POLICY, NOW_MS) == ()
