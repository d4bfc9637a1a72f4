"""On a fleet whose truth is known: every fault that agents can see is found, and no healthy GPU is taken out."""

from dataclasses import replace

import pytest

from muster.domain.policy import DEFAULT_POLICY
from simulator import health_quality
from simulator.fault_stream import FAULTS, INTERVAL_MS, Stream, stream_of
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
