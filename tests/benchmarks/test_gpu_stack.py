"""The suite for a stack with real GPUs, as far as it goes without one."""

import pytest

from agents.probes.interface import Probe, ProbeError
from benchmarks import gpu_stack
from benchmarks.figures import NothingToMeasureError


def _no_driver() -> Probe:
    raise ProbeError("there is no driver")


def test_a_machine_without_a_driver_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_stack, "open_nvml_probe", _no_driver)
    with pytest.raises(NothingToMeasureError):
        list(gpu_stack.measure(gpu_stack.SIZES.smallest))


def test_a_program_that_is_placed_first_prints_its_cuda_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number comes from the program itself, after it was placed into its group."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    placed: list[int] = []
    assert gpu_stack._cuda_devices(placed.append) == 0
    assert len(placed) == 1


def test_a_host_part_counts_as_isolated_by_its_own_record_alone() -> None:
    assert gpu_stack._is_barred({"exit_record": {"device_files": "cgroup"}})
    assert not gpu_stack._is_barred({"exit_record": {"device_files": "none"}})
    assert not gpu_stack._is_barred({"exit_record": None})
