"""Evidence that weighs nothing: rules in shadow, boots, maintenance, and evidence that is pending."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count

import pytest

from health.detectors.registry import closings_of, judge_signal
from health.evidence.evidence import close
from health.evidence.index import EvidenceIndex
from health.evidence.merge import Place, merge
from health.evidence.state import counts, is_open
from health.evidence.suppression import outlasted, why_weightless
from health.scoring.score import score
from health.standing.rule_cordon import holding
from health.standing.standing import decide, next_evaluation_ms
from muster.domain.evidence.findings import EventKind, Evidence, GpuSignal, Severity, Source, Suppression
from muster.domain.ids import EvidenceId, GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from tests.health.case_factory import GPU, HOUR, MINUTE, NODE, NOW_MS, POLICY, SECOND, case, signal

OUTLAST = int(POLICY.warm_up.outlast_s * SECOND)
WAIT = int(POLICY.warm_up.log_wait_s * SECOND)
WORDS = "NVLink: fatal error detected on link 2(0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
"""An XID 74 whose one bit has no meaning by itself."""


def merged(
    signals: Iterable[GpuSignal], policy: HealthPolicy = POLICY, *, is_in_maintenance: bool = False
) -> list[Evidence]:
    known = EvidenceIndex()
    numbers = count()
    place = Place(known, is_in_maintenance=is_in_maintenance)
    for each in signals:
        for finding in judge_signal(each, policy):
            list(merge(finding, place, policy, each.at_ms, lambda: EvidenceId(f"ev_{next(numbers)}")))
        for closing in closings_of(each, policy):
            for evidence in known.values():
                known.put(close(evidence, closing))
    return list(known.values())


def links_down(at_ms: int = NOW_MS, down: float = 1.0) -> GpuSignal:
    return signal(EventKind.GPU_STATE, at_ms=at_ms, nvlink_links=18.0, nvlink_links_down=down)


def test_what_a_rule_in_shadow_finds_is_kept_and_moves_nothing() -> None:
    policy = HealthPolicy.model_validate({"detectors": {"xid": {"mode": "shadow"}}})
    (found,) = merged([signal(code=95)], policy)
    assert (found.severity, why_weightless(found)) == (Severity.CONDEMNING, "its rule is in shadow mode")
    assert score([found], policy, NOW_MS).value == 100.0
    assert decide(case(Standing.HEALTHY, found), NOW_MS, policy) is None


def test_a_rule_that_leaves_shadow_counts_from_its_next_word() -> None:
    shadow = HealthPolicy.model_validate({"detectors": {"sram_threshold": {"mode": "shadow"}}})
    state = signal(EventKind.GPU_STATE, sram_threshold_exceeded=1.0)
    known = EvidenceIndex(merged([state], shadow))
    (again,) = judge_signal(replace(state, at_ms=NOW_MS + HOUR), POLICY)
    list(merge(again, Place(known), POLICY, NOW_MS + HOUR, lambda: EvidenceId("ev_on")))
    assert [counts(each) for each in known.values()] == [False, True]


def test_links_that_are_down_weigh_once_they_have_outlasted_their_time() -> None:
    (found,) = merged([links_down()])
    assert not counts(found)
    assert next_evaluation_ms(case(Standing.HEALTHY, found), NOW_MS, POLICY) == NOW_MS + OUTLAST
    assert not counts(outlasted(found, NOW_MS + OUTLAST - 1))
    lasting = outlasted(found, NOW_MS + OUTLAST)
    move = decide(case(Standing.HEALTHY, lasting), NOW_MS + OUTLAST, POLICY)
    assert move is not None
    assert move.to_standing is Standing.SUSPECT


def test_links_that_come_up_in_time_never_weighed() -> None:
    (found,) = merged([links_down(), links_down(NOW_MS + OUTLAST - 1, down=0.0)])
    assert not counts(outlasted(found, NOW_MS + 2 * HOUR))


@pytest.mark.parametrize(("since_boot_s", "is_warm"), [(899.9, True), (900.0, False)])
def test_an_nvlinks_xid_soon_after_a_boot_weighs_nothing(since_boot_s: float, is_warm: bool) -> None:  # noqa: FBT001
    (found,) = merged([signal(code=74, source=Source.KERNEL_LOG, since_boot_s=since_boot_s)])
    assert (found.suppressed_by == {Suppression.WARM_UP}) is is_warm
    assert counts(found) is not is_warm


def test_other_xids_weigh_from_the_first_second() -> None:
    (found,) = merged([signal(code=79, source=Source.KERNEL_LOG, since_boot_s=1.0)])
    assert counts(found)


def test_a_boot_storm_of_healthy_nodes_quarantines_none_and_suspects_none() -> None:
    """NVSentinel issue 1701: 214 of 288 healthy nodes reported links that trained."""
    moved = []
    for node in range(288):
        uuid, node_id = GpuUuid(f"GPU-{node}"), NodeId(f"node_{node}")
        trains = node < 214
        told = [
            signal(code=149, source=Source.NVML, since_boot_s=20.0),
            links_down(NOW_MS + SECOND, 4.0),
            signal(EventKind.GPU_STATE, at_ms=NOW_MS + 2 * SECOND, fabric_state=2.0),
            signal(EventKind.GPU_STATE, at_ms=NOW_MS + 90 * SECOND, fabric_state=3.0, nvlink_links_down=0.0),
        ]
        evidence = merged(replace(each, gpu_uuid=uuid, node_id=node_id) for each in (told if trains else told[3:]))
        assert (len(evidence) >= 3) is trains, "it is kept"
        for at_ms in (NOW_MS + 91 * SECOND, NOW_MS + OUTLAST, NOW_MS + HOUR):
            settled = tuple(outlasted(each, at_ms) for each in evidence)
            moved.append(decide(replace(case(Standing.HEALTHY, *settled), gpu_uuid=uuid), at_ms, POLICY))
    assert moved == [None] * 3 * 288


def test_what_nvml_alone_reports_of_a_link_waits_for_its_words() -> None:
    (found,) = merged([signal(code=74)])
    assert not counts(found)
    assert counts(outlasted(found, NOW_MS + WAIT)), "the worse stands where no words came"


@pytest.mark.parametrize("first", [Source.NVML, Source.KERNEL_LOG])
def test_the_kernel_logs_words_decide_whichever_came_first(first: Source) -> None:
    bare, worded = signal(code=74), signal(code=74, source=Source.KERNEL_LOG, text=WORDS)
    told = (bare, worded) if first is Source.NVML else (worded, bare)
    signals = [replace(each, at_ms=NOW_MS + at * SECOND) for at, each in enumerate(told)]
    evidence = [outlasted(each, NOW_MS + HOUR) for each in merged(signals)]
    weighing = [each for each in evidence if counts(each)]
    assert [each.severity for each in weighing] == [Severity.INFO]
    assert decide(case(Standing.HEALTHY, *evidence), NOW_MS + HOUR, POLICY) is None


def test_words_that_come_too_late_do_not_undo_the_catalogues() -> None:
    bare, late = signal(code=74), signal(code=74, source=Source.KERNEL_LOG, text=WORDS, at_ms=NOW_MS + WAIT + 1)
    evidence = [outlasted(each, NOW_MS + WAIT) for each in merged([bare, late])]
    assert max(each.severity for each in evidence if counts(each)) is Severity.CONDEMNING


def test_an_xid_of_another_kind_waits_for_nothing() -> None:
    (found,) = merged([signal(code=79)])
    assert counts(found)


def test_in_maintenance_what_a_node_reports_of_itself_weighs_nothing() -> None:
    port = signal(EventKind.PORT_STATE, gpu=None, source=Source.HOST, text="mlx5_0/1", state=1.0, was_active=1.0)
    crc = signal(EventKind.GPU_RATES, crc_errors=60_000.0, window_s=60.0)
    evidence = merged([port, links_down(), crc, signal(code=74), signal(code=95)], is_in_maintenance=True)
    assert {each.fault_key: each.suppressed_by for each in evidence} == {
        "port_down:mlx5_0/1": {Suppression.MAINTENANCE},
        "nvlink_down": {Suppression.MAINTENANCE},
        "nvlink_crc": {Suppression.MAINTENANCE},
        "xid:74": {Suppression.MAINTENANCE},
        "xid:95": frozenset(),
    }


def test_after_maintenance_a_state_that_stands_is_a_finding_of_its_own() -> None:
    known = EvidenceIndex(merged([links_down()], is_in_maintenance=True))
    (again,) = judge_signal(links_down(NOW_MS + MINUTE), POLICY)
    list(merge(again, Place(known), POLICY, NOW_MS + MINUTE, lambda: EvidenceId("ev_after")))
    assert [bool(each.suppressed_by) for each in known.values()] == [True, False]


def port_down(at_ms: int = NOW_MS) -> Evidence:
    told = signal(
        EventKind.PORT_STATE, gpu=None, at_ms=at_ms, source=Source.HOST, text="mlx5_0/1", state=1.0, was_active=1.0
    )
    (found,) = merged([told])
    return found


def test_an_agent_that_is_new_does_not_state_that_a_port_is_up_again() -> None:
    told = signal(EventKind.PORT_STATE, gpu=None, source=Source.HOST, text="mlx5_0/1", state=1.0, was_active=1.0)
    unknown = replace(told, at_ms=NOW_MS + MINUTE, values={"state": 1.0})
    never = replace(unknown, values={"state": 1.0, "was_active": 0.0})
    (found,) = merged([told, unknown, never])
    assert is_open(found)


def test_a_port_that_is_down_holds_its_node_after_four_minutes() -> None:
    found, after = port_down(), int(POLICY.detectors.port_down.after_s * SECOND)
    assert holding([outlasted(found, NOW_MS + after - 1)], POLICY, NOW_MS + after - 1) == ()
    assert len(holding([outlasted(found, NOW_MS + after)], POLICY, NOW_MS + after)) == 1


def test_a_node_is_on_hold_by_what_is_bad_enough_measured_and_not_over() -> None:
    told = signal(EventKind.PORT_RATES, gpu=None, source=Source.HOST, text="mlx5_0/1", link_downed=1.0, window_s=60.0)
    (found,) = merged([told])
    for_ms = int(POLICY.rule_cordon.rate_fault_s * SECOND)
    assert holding([found], POLICY, NOW_MS + for_ms - 1) == (found,)
    assert holding([found], POLICY, NOW_MS + for_ms) == ()
    for other in (
        replace(found, severity=Severity.WARNING),
        replace(found, gpu_uuid=GPU),
        replace(found, is_dismissed=True),
        replace(found, counts_for_ms=0),
        replace(found, closed_at_ms=NOW_MS),
    ):
        assert holding([other], POLICY, NOW_MS) == ()
    off = HealthPolicy.model_validate({"rule_cordon": {"is_on": False}})
    assert holding([found], off, NOW_MS) == ()


def test_a_fault_of_a_node_is_none_of_its_gpus() -> None:
    assert decide(case(Standing.HEALTHY, port_down()), NOW_MS + HOUR, POLICY) is None
    assert port_down().node_id == NODE
