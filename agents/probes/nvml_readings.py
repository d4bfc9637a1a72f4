"""NVML calls by metric: one table, read from top to bottom in each check.

Names and traps: reference ``gpu-health.md`` §7, checked against nvidia-ml-py 13. A call that an older driver lacks is
followed by its predecessor.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from agents.probes.nvml_fields import MEMORY_TEMPERATURE, RECOVERY_ACTION, number_of, read_fields
from agents.probes.nvml_library import FUNCTION_NOT_FOUND
from agents.probes.nvml_links import LinkMemory, read_links
from agents.probes.nvml_sheet import Sheet
from muster.domain.gpu.metrics import METRICS, Values

MIB: Final = 1024 * 1024
_GPU_SENSOR: Final = 0
_SM_CLOCK: Final = 1
_MEMORY_CLOCK: Final = 2
_CORRECTED: Final = 0
_UNCORRECTED: Final = 1
_VOLATILE: Final = 0
_AGGREGATE: Final = 1

Read = Callable[[Any, Any], Sequence[float]]
"""Function of (pynvml, device handle): one value for each metric of the reading, in the metric's unit."""


@dataclass(frozen=True, slots=True)
class Reading:
    metrics: tuple[str, ...]
    read: Read


@dataclass(frozen=True, slots=True)
class Polled:
    values: Values
    unsupported: frozenset[str]
    faults: dict[str, str]


def newest(nvml: Any, *calls: Callable[[], Any]) -> Any:
    """Return the result of the first call that this driver has.

    Raises NVMLError FUNCTION_NOT_FOUND where it has none.
    """
    for call in calls:
        try:
            return call()
        except nvml.NVMLError as error:
            if error.value != FUNCTION_NOT_FOUND:
                raise
    raise nvml.NVMLError(FUNCTION_NOT_FOUND)


def _temperature(nvml: Any, handle: Any) -> tuple[float]:
    degrees = newest(
        nvml,
        lambda: nvml.nvmlDeviceGetTemperatureV(handle, _GPU_SENSOR),
        lambda: nvml.nvmlDeviceGetTemperature(handle, _GPU_SENSOR),
    )
    return (degrees,)


def _clock_event_reasons(nvml: Any, handle: Any) -> tuple[float]:
    bits = newest(
        nvml,
        lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
        lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    )
    return (bits,)


def memory_of(nvml: Any, handle: Any) -> Any:
    """Return memory sizes.

    Version 2 keeps the driver's reserve out of ``used``; an idle GPU then uses next to nothing.
    """
    return newest(
        nvml,
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2),
        lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
    )


def _utilisation(nvml: Any, handle: Any) -> tuple[float, float]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _ecc(error_type: int, counter_type: int) -> Read:
    return lambda nvml, handle: (nvml.nvmlDeviceGetTotalEccErrors(handle, error_type, counter_type),)


def _clock(clock: int) -> Read:
    return lambda nvml, handle: (nvml.nvmlDeviceGetClockInfo(handle, clock),)


NVML_READINGS: Final[tuple[Reading, ...]] = (
    Reading(("temperature_c",), _temperature),
    Reading(("temperature_margin_c",), lambda nvml, gpu: (nvml.nvmlDeviceGetMarginTemperature(gpu),)),
    Reading(("power_w",), lambda nvml, gpu: (nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,)),
    Reading(("power_limit_w",), lambda nvml, gpu: (nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,)),
    Reading(("energy_j",), lambda nvml, gpu: (nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,)),
    Reading(("sm_clock_mhz",), _clock(_SM_CLOCK)),
    Reading(("memory_clock_mhz",), _clock(_MEMORY_CLOCK)),
    Reading(("clock_event_reasons",), _clock_event_reasons),
    Reading(("utilisation_percent", "memory_utilisation_percent"), _utilisation),
    Reading(("memory_used_mib",), lambda nvml, gpu: (memory_of(nvml, gpu).used / MIB,)),
    # The name without a version hides a missing function behind an error of another family.
    Reading(("num_processes",), lambda nvml, gpu: (len(nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)),)),
    Reading(("ecc_corrected_volatile",), _ecc(_CORRECTED, _VOLATILE)),
    Reading(("ecc_uncorrected_volatile",), _ecc(_UNCORRECTED, _VOLATILE)),
    Reading(("ecc_corrected_aggregate",), _ecc(_CORRECTED, _AGGREGATE)),
    Reading(("ecc_uncorrected_aggregate",), _ecc(_UNCORRECTED, _AGGREGATE)),
    Reading(
        ("remapped_rows_corrected", "remapped_rows_uncorrected", "remap_pending", "remap_failure"),
        lambda nvml, gpu: nvml.nvmlDeviceGetRemappedRows(gpu),
    ),
    Reading(("pcie_generation",), lambda nvml, gpu: (nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu),)),
    Reading(("pcie_width",), lambda nvml, gpu: (nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu),)),
    Reading(("pcie_replays",), lambda nvml, gpu: (nvml.nvmlDeviceGetPcieReplayCounter(gpu),)),
)

NVML_FIELD_OF_METRIC: Final = {"memory_temperature_c": MEMORY_TEMPERATURE, "recovery_action": RECOVERY_ACTION}
"""Metric → NVML field; all in one call."""


def poll(nvml: Any, handle: Any, links: LinkMemory, clock_s: Callable[[], float]) -> Polled:
    """Read every metric of one GPU. Raises GpuLostError at the first call that reports it lost.

    Rates are since the poll before, by ``clock_s``.
    """
    sheet = Sheet(nvml)
    for reading in NVML_READINGS:
        sheet.take(reading.metrics, partial(reading.read, nvml, handle))
    _read_single_fields(sheet, handle)
    read_links(sheet, handle, links, clock_s())
    return Polled(
        values=tuple(_as_float(sheet.values.get(metric.name)) for metric in METRICS),
        unsupported=frozenset(sheet.unsupported),
        faults=sheet.faults,
    )


def _read_single_fields(sheet: Sheet, handle: Any) -> None:
    sheet.take(
        tuple(NVML_FIELD_OF_METRIC), lambda: read_fields(sheet.nvml, handle, list(NVML_FIELD_OF_METRIC.values()))
    )
    found = {name: sheet.values.pop(name) for name in NVML_FIELD_OF_METRIC if name in sheet.values}
    for name, field in found.items():
        sheet.take_one(name, partial(number_of, sheet.nvml, field))


def _as_float(value: Any) -> float | None:
    return None if value is None else float(value)
