"""What would condemn keeps its GPU out of placements as soon as it is stored, and no longer than the judge needs."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

from control.fleet.inventory import gpu_views
from control.policy.policies import ACTIVATE, store_policy
from control.telemetry import judging
from control.telemetry.judging import SampleJudge
from health.detectors.registry import judge_signal
from health.standing.admission import Refusal, refusals_of
from muster.db.models import StoredSignal
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import Standing
from muster.wire.telemetry import EventReport
from tests.control.health.conftest import GPU, OTHER, UNLIMITED, Court, sample
from tests.fleet_factory import OPERATOR

TIER = DEFAULT_POLICY.tier("on_demand")


def reported(court: Court, code: int = 79, uuid: GpuUuid | None = GPU, **more: Any) -> None:
    event = {"event_id": f"e{code}", "kind": "xid", "source": "nvml", "at_ms": court.now_ms, "gpu_uuid": uuid}
    court.receive(sample(), events=(EventReport(**{**event, "code": code, **more}),))


def kept_out(court: Court) -> set[GpuUuid]:
    """Return the GPUs that admission refuses for reports alone, by the snapshot and by the commit's own read."""
    with court.units.read() as session:
        look = partial(gpu_views, session, court.clock.now, DEFAULT_POLICY.health)
        views = [*look(), *look(only=[GPU, OTHER])]
    return {view.uuid for view in views if Refusal.REPORTED in refusals_of(view.facts, TIER)}


def test_what_would_condemn_keeps_its_gpu_out_until_it_is_judged(court: Court) -> None:
    reported(court)
    assert court.standing() is Standing.HEALTHY
    assert kept_out(court) == {GPU}
    court.judge()
    assert court.standing() is Standing.QUARANTINED
    assert kept_out(court) == set()


def test_a_sample_that_would_condemn_does_the_same(court: Court) -> None:
    court.receive(sample(), sample(OTHER))
    court.receive(sample(ecc_uncorrected_volatile=2.0, ecc_uncorrected_aggregate=2.0), sample(OTHER))
    assert kept_out(court) == {GPU}


def test_what_would_condemn_a_node_keeps_all_of_its_gpus_out(court: Court) -> None:
    reported(court, 79, None)
    with court.units.read() as session:
        views = gpu_views(session, court.clock.now, DEFAULT_POLICY.health)
    of_the_node = {view.uuid for view in views if view.node_id == court.node_id}
    assert len(of_the_node) == 8
    assert kept_out(court) == of_the_node


@pytest.mark.parametrize("code", [13, 43, 63])
def test_what_does_not_condemn_keeps_nothing_out(court: Court, code: int) -> None:
    reported(court, code)
    with court.units.read() as session:
        assert session.scalars(select(StoredSignal.is_alarming)).all() == [False]
    assert kept_out(court) == set()


def test_a_rule_in_shadow_keeps_nothing_out(court: Court) -> None:
    shadow = {"breaker": UNLIMITED, "detectors": {"xid": {"mode": "shadow"}}}
    with court.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate({"health": shadow}), reason="test")
    reported(court)
    assert kept_out(court) == set()


def test_an_event_that_cannot_be_judged_is_stored_all_the_same(court: Court, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(judging, "judge_signal", fail)
    reported(court)
    with court.units.read() as session:
        assert session.scalars(select(StoredSignal.is_alarming)).all() == [False]


def test_events_that_are_alike_are_judged_once_and_what_decides_is_in_what_they_are_alike_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge, asked = SampleJudge(), list[GpuSignal]()

    def judged(signal: GpuSignal, policy: HealthPolicy) -> tuple[Finding, ...]:
        asked.append(signal)
        return judge_signal(signal, policy)

    monkeypatch.setattr(judging, "judge_signal", judged)
    plain = GpuSignal("a", EventKind.XID, Source.KERNEL_LOG, 1, NodeId("node_1"), GPU, code=74, text="NVLink: fatal")
    elsewhere = replace(plain, signal_id="b", gpu_uuid=OTHER, node_id=NodeId("node_2"), at_ms=2)
    assert [judge.is_alarming(each) for each in (plain, elsewhere)] == [True, True]
    assert asked == [plain]
    in_warm_up = replace(plain, values={"since_boot_s": 1.0})
    without_words = replace(plain, source=Source.NVML)
    of_a_program = replace(plain, code=31)
    assert [judge.is_alarming(each) for each in (in_warm_up, without_words, of_a_program)] == [False] * 3
