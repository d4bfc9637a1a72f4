"""Where this machine has an NVIDIA driver: its GPUs as they are, by the probe that the agent runs."""

import time
from collections.abc import Iterator

import pytest

from agents.probes.interface import Probe, ProbeError
from agents.probes.nvml import open_nvml_probe
from agents.scan.scan import scan
from muster.domain.gpu.metrics import METRICS


@pytest.fixture
def probe() -> Iterator[Probe]:
    try:
        found = open_nvml_probe()
    except ProbeError as error:
        pytest.skip(f"NO NVIDIA DRIVER HERE, NO REAL GPU IS READ: {error}")
    yield found
    found.close()


def test_a_real_gpu_states_what_it_is(probe: Probe) -> None:
    inventory = probe.identify()
    assert inventory.gpus
    assert not inventory.is_simulated
    assert inventory.driver_version
    for gpu in inventory.gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.memory_bytes is not None
        assert gpu.memory_bytes > 1 << 30
        assert gpu.compute_capability


def test_a_real_gpus_readings_are_in_their_units(probe: Probe) -> None:
    probe.identify()
    for check in probe.check(time.time_ns() // 1_000_000):
        assert not check.is_lost
        readings = dict(zip((metric.name for metric in METRICS), check.values, strict=True))
        assert 5 < (readings["temperature_c"] or 0) < 110
        assert 1 < (readings["power_w"] or 1.5) < 2_000
        assert 0 <= (readings["sm_clock_mhz"] or 0) < 5_000


def test_a_scan_of_real_gpus_reports_of_each(probe: Probe) -> None:
    report = scan(probe, now_ms=time.time_ns() // 1_000_000, listen_s=0.2)
    assert len(report.gpus) == len(report.inventory.gpus)
