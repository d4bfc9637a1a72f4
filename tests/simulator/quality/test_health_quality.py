"""On a fleet whose truth is known: every fault that agents can see is found, and no healthy GPU is taken out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from health.replay.stream import Sampled
from muster.domain.evidence.findings import EventKind, GpuSignal
from muster.domain.policy.document import DEFAULT_POLICY
from simulator.quality import health_quality
from simulator.quality.fault_classes import FAULTS, NUM_INTERRUPTIONS, NUM_LISTED, UNSEEN
from simulator.quality.fault_stream import INTERVAL_MS, SAMPLES_OF_A_FAULT, WATCHED_BEFORE_MS, Stream, stream_of
from simulator.quality.health_quality import START_MS, quality_of
from simulator.quality.user_programs import HOUR_MS

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


def test_agents_that_begin_again_send_again_and_report_again_what_stands() -> None:
    stream = stream_of(1, NODES, DAYS, START_MS)
    signals = [given for _, given in stream.arrivals if isinstance(given, GpuSignal)]
    assert any(count > 1 for count in Counter(each.signal_id for each in signals).values()), "as it was"
    for injected in stream.injected:
        event = injected.fault.event
        if event is not None and event.kind is EventKind.PORT_STATE:
            told = {each.signal_id for each in signals if each.node_id == injected.node_id and each.kind is event.kind}
            assert len(told) == 2, "as an event of its own"


def test_a_fault_that_counts_twice_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The measure can fail: each XID of a fault comes again after an hour, as another event."""

    def reported_twice(seed: int, num_nodes: int, num_days: float, start_ms: int) -> Stream:
        stream = stream_of(seed, num_nodes, num_days, start_ms)
        later = [
            (at_ms + HOUR_MS, replace(given, signal_id=f"{given.signal_id}:again", at_ms=given.at_ms + HOUR_MS))
            for at_ms, given in stream.arrivals
            if isinstance(given, GpuSignal) and given.code == 119
        ]
        return replace(stream, arrivals=tuple(sorted([*stream.arrivals, *later], key=lambda each: each[0])))

    monkeypatch.setattr(health_quality, "stream_of", reported_twice)
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


def test_the_same_seed_reports_the_same() -> None:
    assert stream_of(7, 20, 2.0, START_MS) == stream_of(7, 20, 2.0, START_MS)
    assert stream_of(7, 20, 2.0, START_MS) != stream_of(8, 20, 2.0, START_MS)


def test_each_class_is_listed_or_states_why_it_cannot_be_seen_and_the_page_has_it() -> None:
    unseen = sum(number for number, _ in UNSEEN.values())
    assert NUM_LISTED + unseen == NUM_INTERRUPTIONS
    page = (Path(__file__).resolve().parents[3] / "docs" / "field-rules.md").read_text(encoding="utf-8")
    for name, (number, why) in UNSEEN.items():
        assert f"| {name} | {number} | {why} |" in page


def test_programs_crash_at_the_issues_rate_in_rows_on_the_same_gpus_each_with_its_clean_up() -> None:
    stream = stream_of(1, 2_000, DAYS, START_MS)
    crashes = [
        given
        for _, given in stream.arrivals
        if isinstance(given, GpuSignal) and given.code in {13, 31, 43} and given.gpu_uuid is not None
    ]
    apart = {(each.signal_id, each.node_id) for each in crashes}
    of_programs = len({(each.node_id, each.at_ms) for each in crashes})
    assert of_programs == pytest.approx(0.002 * 24 * DAYS * 2_000, rel=0.15)
    assert len(apart) > of_programs, "some report all GPUs of their node"
    assert max(Counter(each.gpu_uuid for each in crashes).values()) > 20, "again and again on one GPU"
    assert all("NVRM" not in each.text for each in crashes), "as the parser leaves the line's words"


def test_lost_samples_are_gone_and_lost_events_only_late() -> None:
    stream = stream_of(1, NODES, DAYS, START_MS)
    by_readings = {each.gpu_uuid for each in stream.injected if each.fault.readings}
    told = {given.sample.at_ms: given.sample.gpu_uuid for _, given in stream.arrivals if isinstance(given, Sampled)}
    samples = Counter(uuid for uuid in told.values() if uuid in by_readings)
    assert min(samples.values()) < SAMPLES_OF_A_FAULT + len(WATCHED_BEFORE_MS)
    late = [at_ms - given.at_ms for at_ms, given in stream.arrivals if isinstance(given, GpuSignal)]
    assert max(late) > INTERVAL_MS
