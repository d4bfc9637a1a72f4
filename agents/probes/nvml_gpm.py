"""Activity of an idle GPU by NVIDIA's performance counters (GPM, Hopper and later): ``idle_…`` of ``GPU_STATE``.

Profiling counters are read only while no program computes on the GPU, at the beginning of a window and at its end:
during a job they would slow it, and the job may use them itself. Activity on a GPU without a program is news: a kernel
that outlived its program, or a program that the driver does not list.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Final

from agents import host_facts
from agents.probes.nvml_library import NOT_SUPPORTED, SUCCESS, UNSUPPORTED_CODES
from agents.probes.nvml_sheet import Sheet

GPM_METRICS: Final[Mapping[str, tuple[int, ...]]] = {
    "idle_sm_percent": (2,),
    "idle_dram_percent": (10,),
    "idle_pcie_mib_per_s": (20, 21),
    "idle_nvlink_mib_per_s": (60, 61),
}
"""Name → NVML_GPM_METRIC_* that are summed: SM_UTIL, DRAM_BW_UTIL, PCIe TX and RX, NVLink RX and TX of all links."""
_IDS: Final = tuple(number for numbers in GPM_METRICS.values() for number in numbers)
_TURN_S: Final = 0.2
_TURN: Final = Lock()
"""GPM is not safe in parallel. A caller that does not get its turn tries again at the next inspection."""


@dataclass(slots=True)
class GpmMemory:
    """GPM's state. ``sample``: of the newest inspection, None where the GPU was not idle.

    ``is_supported``: None until it is known.
    """

    sample: Any = None
    is_supported: bool | None = None

    def drop(self, nvml: Any) -> None:
        """Free the sample, before the driver is released and where the GPU is no longer idle."""
        sample, self.sample = self.sample, None
        if sample is not None:
            nvml.nvmlGpmSampleFree(sample)


def read_idle(sheet: Sheet, handle: Any, memory: GpmMemory) -> None:
    """Write the GPU's activity since the inspection before, if it was idle at both. Raises GpuLostError."""
    if not _supports(sheet, handle, memory) or not _TURN.acquire(timeout=_TURN_S):
        return
    try:
        if not _is_idle(sheet.nvml, handle):
            memory.drop(sheet.nvml)
            return
        told = _metric(sheet, "window", partial(_window, sheet.nvml, handle, memory))
        for name, numbers in GPM_METRICS.items() if told else ():
            sheet.take_one(name, partial(_sum, sheet.nvml, [told[number] for number in numbers]))
    finally:
        _TURN.release()


def _metric(sheet: Sheet, name: str, read: Callable[[], Any]) -> Any:
    """Return the result of ``read``, or None: then the sheet has the reason for all our names. Raises GpuLostError."""
    asked = Sheet(sheet.nvml)
    asked.take_one(name, read)
    sheet.unsupported.update(GPM_METRICS if asked.unsupported else ())
    sheet.faults.update(dict.fromkeys(GPM_METRICS, asked.faults[name]) if asked.faults else {})
    return asked.values.get(name)


def _supports(sheet: Sheet, handle: Any, memory: GpmMemory) -> bool:
    if memory.is_supported is None:
        told = _metric(sheet, "support", lambda: sheet.nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
        memory.is_supported = None if told is None else bool(told)
    if memory.is_supported is False:
        sheet.unsupported.update(GPM_METRICS)
    return bool(memory.is_supported)


def _is_idle(nvml: Any, handle: Any) -> bool:
    """Return whether no program is on the GPU; False where that is unknown.

    MIG's instances have counters and processes of their own; and in another PID namespace than the initial one the
    driver may leave out processes.
    """
    if not host_facts.sees_every_process():
        return False
    try:
        if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle):
            return False
    except nvml.NVMLError:
        return False
    try:
        return not nvml.nvmlDeviceGetMigMode(handle)[0]
    except nvml.NVMLError as error:
        return error.value in UNSUPPORTED_CODES


def _window(nvml: Any, handle: Any, memory: GpmMemory) -> dict[int, Any]:
    """Return metric → its value since the sample before; empty where this is the first."""
    newest = nvml.nvmlGpmSampleAlloc()
    try:
        nvml.nvmlGpmSampleGet(handle, newest)
    except nvml.NVMLError:
        nvml.nvmlGpmSampleFree(newest)
        raise
    before, memory.sample = memory.sample, newest
    if before is None:
        return {}
    try:
        asked = nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(_IDS)
        asked.sample1, asked.sample2 = before, newest
        for at, number in enumerate(_IDS):
            asked.metrics[at].metricId = number
        nvml.nvmlGpmMetricsGet(asked)
        return {number: asked.metrics[at] for at, number in enumerate(_IDS)}
    finally:
        nvml.nvmlGpmSampleFree(before)


def _sum(nvml: Any, metrics: Iterable[Any]) -> float:
    return sum(_value(nvml, metric) for metric in metrics)


def _value(nvml: Any, metric: Any) -> float:
    """Return the value. Raises NVMLError by the metric's own code."""
    if metric.nvmlReturn != SUCCESS:
        raise nvml.NVMLError(metric.nvmlReturn)
    if not math.isfinite(metric.value) or metric.value < 0:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return float(metric.value)
