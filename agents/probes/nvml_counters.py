"""Counters of one GPU and of its links from NVML, by the names of ``state_readings.GPU_RATES``.

The links' counters are from the newest check (``LinkMemory``); only symbol errors are read here.
"""

from functools import partial
from typing import Any, Final

from agents.probes.nvml_fields import (
    C2C_BACK_TO_BACK_REPLAYS,
    C2C_ERRORS,
    C2C_REPLAYS,
    HW_THERMAL_SLOWDOWN,
    NVLINK_SYMBOL_ERRORS,
    PCIE_CORRECTABLE_ERRORS,
    POWER_BRAKE_SLOWDOWN,
    SW_THERMAL_SLOWDOWN,
    number_of,
    read_fields,
)
from agents.probes.nvml_library import UNSUPPORTED_CODES
from agents.probes.nvml_links import LinkMemory
from agents.probes.nvml_sheet import Sheet

_NS_PER_S: Final = 1e9
_CORRECTED: Final = 0
_VOLATILE: Final = 0
_AGGREGATE: Final = 1
_DRAM: Final = 2
_SRAM: Final = 7
_ECC_COUNTERS: Final = {
    "ecc_corrected_sram": (_VOLATILE, _SRAM),
    "ecc_corrected_dram": (_VOLATILE, _DRAM),
    "ecc_corrected_sram_total": (_AGGREGATE, _SRAM),
    "ecc_corrected_dram_total": (_AGGREGATE, _DRAM),
}
_COUNTER_FIELDS: Final = {
    "pcie_correctable_errors": (PCIE_CORRECTABLE_ERRORS, 1.0),
    "sw_thermal_s": (SW_THERMAL_SLOWDOWN, _NS_PER_S),
    "hw_thermal_s": (HW_THERMAL_SLOWDOWN, _NS_PER_S),
    "power_brake_s": (POWER_BRAKE_SLOWDOWN, _NS_PER_S),
    "c2c_errors": (C2C_ERRORS, 1.0),
    "c2c_replays": (C2C_REPLAYS, 1.0),
    "c2c_back_to_back_replays": (C2C_BACK_TO_BACK_REPLAYS, 1.0),
}
"""Counter → NVML field, and how many of the field's unit make one of our own unit."""
ALONGSIDE: Final = frozenset({"pcie_generation", "pcie_width", "ecc_corrected_sram_total", "ecc_corrected_dram_total"})
"""Values that are reported with a rise, and no rises themselves."""
_OF_LINKS: Final = {"nvlink_crc_errors": "crc_errors", "nvlink_replays": "replays", "nvlink_recoveries": "recoveries"}
"""Metric of a check → name of a link's counter."""


def read_counters(sheet: Sheet, handle: Any) -> None:
    """Write counters of the whole GPU on the sheet, and the values reported with them. Raises GpuLostError."""
    nvml = sheet.nvml
    sheet.take_one("pcie_replays", lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle))
    sheet.take_one("pcie_generation", lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle))
    sheet.take_one("pcie_width", lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))
    for name, (counter, place) in _ECC_COUNTERS.items():
        sheet.take_one(name, partial(nvml.nvmlDeviceGetMemoryErrorCounter, handle, _CORRECTED, counter, place))
    sheet.take(
        tuple(_COUNTER_FIELDS), lambda: read_fields(nvml, handle, [field for field, _ in _COUNTER_FIELDS.values()])
    )
    found = {name: sheet.values.pop(name) for name in _COUNTER_FIELDS if name in sheet.values}
    for name, field in found.items():
        sheet.take_one(name, partial(_in_our_unit, nvml, field, _COUNTER_FIELDS[name][1]))


def read_link_counters(nvml: Any, handle: Any, memory: LinkMemory) -> dict[int, dict[str, float]]:
    """Return link → name → count.

    Raises NVMLError where the driver fails, not where it does not count symbol errors.
    """
    counts = {
        link: {_OF_LINKS[metric]: count for metric, count in of_link.items()}
        for link, of_link in memory.by_link().items()
    }
    links = list(counts)
    fields = read_fields(nvml, handle, [(NVLINK_SYMBOL_ERRORS, link) for link in links]) if links else []
    for link, field in zip(links, fields, strict=True):
        try:
            counts[link]["symbol_errors"] = number_of(nvml, field)
        except nvml.NVMLError as error:
            if error.value not in UNSUPPORTED_CODES:
                raise
    return counts


def _in_our_unit(nvml: Any, field: Any, factor: float) -> float:
    return number_of(nvml, field) / factor
