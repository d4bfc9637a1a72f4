"""The suite for a host of real GPUs, as far as it goes without one."""

import pytest

from agents.probes.interface import Probe, ProbeError
from benchmarks import gpu_host
from benchmarks.figures import NothingToMeasureError
from muster.domain.ids import GpuUuid
from muster.wire.burn_in import ExactSum, Figures


def _no_driver() -> Probe:
    raise ProbeError("there is no driver")


def test_a_machine_without_a_driver_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_host, "open_nvml_probe", _no_driver)
    with pytest.raises(NothingToMeasureError):
        list(gpu_host.measure(gpu_host.SIZES.smallest))


def test_a_burn_in_gives_its_time_and_each_rate() -> None:
    sums = (ExactSum(name="int8", golden=7, measured=7), ExactSum(name="fp16", golden=7, measured=8))
    found = Figures(
        model="H100", driver="1", library="torch", partial_sums=sums, rates={"bf16_tflops": 700.0}, took_s=12.5
    )
    whole, rate = gpu_host._burn_in_of(0, found)
    assert whole.value == 12.5
    assert whole.peers["wrong sums"] == 1
    assert (rate.name, rate.value, rate.better) == ("burn-in of GPU 0: bf16_tflops", 700.0, "higher")


def test_a_burn_in_that_could_not_run_is_no_figure() -> None:
    with pytest.raises(RuntimeError, match="no torch"):
        gpu_host._burn_in_of(0, "no torch")


def test_the_check_before_a_start_is_the_supervisors_own() -> None:
    """On a machine without a driver the same process computes on the CPU."""
    pytest.importorskip("torch")
    figure = gpu_host._quick_check_figure([GpuUuid("GPU-0")], 0.05)
    assert figure.value > figure.peers["computed s"]
