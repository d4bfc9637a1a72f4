"""On a fleet whose truth is known: every fault that agents can see is found, and no healthy GPU is taken out."""

from collections import Counter
from dataclasses import replace

import pytest

from muster.domain.evidence import EventKind, GpuSignal
from muster.domain.policy import DEFAULT_POLICY
from simulator import health_quality
from simulator.fault_stream import FAULTS, HOUR_MS, INTERVAL_MS, Stream, stream_of
from simulator.health_quality import START_MS, quality_of

NODES, DAYS = 288, 30.0
POLICY = DEFAULT_POLICY.health


@pytest.mark.parametrize("seed", [1, 2])
def test_all_faults_are_found_within_a_report_and_no_healthy_gpu_is_taken_out(seed: int) -> None:
    found = quality_of(seed, NODES, DAYS, POLICY)
    assert found.missed == ()
    assert len(found.found_s) >= len(FAULTS)
    assert found.median_s * 1000 <= INTERVAL_MS
    assert found.wrongly_out == frozenset()
    assert found.counted_twice == ()


def test_agents_that_begin_anew_send_again_and_tell_again_what_stands() -> None:
    stream = stream_of(1, NODES, DAYS, START_MS)
    signals = [given for _, given in stream.arrivals if isinstance(given, GpuSignal)]
    assert any(count > 1 for count in Counter(each.signal_id for each in signals).values()), "as it was"
    for injected in stream.injected:
        event = injected.fault.event
        if event is not None and event.kind is EventKind.PORT_STATE:
            told = {each.signal_id for each in signals if each.node_id == injected.node_id and each.kind is event.kind}
            assert len(told) == 2, "as an event of its own"


def test_a_fault_that_counts_twice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure can fail: each XID of a fault comes once more after an hour, and as another event."""

    def told_twice(seed: int, num_nodes: int, num_days: float, start_ms: int) -> Stream:
        stream = stream_of(seed, num_nodes, num_days, start_ms)
        later = [
            (at_ms + HOUR_MS, replace(given, signal_id=f"{given.signal_id}:again", at_ms=given.at_ms + HOUR_MS))
            for at_ms, given in stream.arrivals
            if isinstance(given, GpuSignal) and given.code == 119
        ]
        return replace(stream, arrivals=tuple(sorted([*stream.arrivals, *later], key=lambda each: each[0])))

    monkeypatch.setattr(health_quality, "stream_of", told_twice)
    assert {each.fault.name for each in quality_of(1, NODES, DAYS, POLICY).counted_twice} == {"gsp"}


def test_a_rule_that_is_off_misses_its_fault() -> None:
    """The measure can fail."""
    blind = POLICY.model_copy(
        update={
            "detectors": POLICY.detectors.model_copy(
                update={"sram_threshold": POLICY.detectors.sram_threshold.model_copy(update={"mode": "off"})}
            )
        }
    )
    assert {each.fault.name for each in quality_of(1, NODES, DAYS, blind).missed} == {"sram"}


def test_a_healthy_gpu_that_is_taken_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_truth(seed: int, num_nodes: int, num_days: float, start_ms: int) -> Stream:
        return replace(stream_of(seed, num_nodes, num_days, start_ms), injected=())

    monkeypatch.setattr(health_quality, "stream_of", without_truth)
    assert quality_of(1, NODES, DAYS, POLICY).wrongly_out


def test_the_same_seed_tells_the_same() -> None:
    assert stream_of(7, 20, 2.0, START_MS) == stream_of(7, 20, 2.0, START_MS)
    assert stream_of(7, 20, 2.0, START_MS) != stream_of(8, 20, 2.0, START_MS)
