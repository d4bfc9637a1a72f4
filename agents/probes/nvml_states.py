"""Values of one GPU that seldom change, from NVML: by the names of ``state_readings.GPU_STATE``.

Names and traps: reference of nvidia-ml-py 13. ``is`` means now, not the setting for after the next reset.
"""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from agents.probes.nvml_fields import NVLINK_SPEED, number_of, read_fields
from agents.probes.nvml_library import CORRUPTED_INFOROM, NOT_SUPPORTED, UNKNOWN_VERSION
from agents.probes.nvml_link_quality import BIT_ERROR_RATES, read_bit_error_rates
from agents.probes.nvml_links import NOTHING, LinkMemory, link_states, note_ends
from agents.probes.nvml_sheet import Sheet

VALIDATE_EVERY_S: Final = 3_600.0
"""Validating the InfoROM reads the board's flash."""
_SINGLE_BIT: Final = 0
_DOUBLE_BIT: Final = 1
_SM_CLOCK: Final = 1
_SLOWDOWN: Final = 1
_MEMORY_MAX: Final = 2
_GPU_MAX: Final = 3
_REGISTERED: Final = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED: before it, nothing else of the fabric means anything."""
_TO_NOTHING: Final = ("nvlink_links_to_nothing", "nvlink_to_nothing_bits")
_CARDS: Final = frozenset({"PCIE", "NVL", "RTX", "QUADRO", "TITAN", "A30", "A30X", "A40", "A100X"})
"""Words in the names of boards for a PCIe slot whose NVLinks need a bridge that may be missing."""
_PENDING_REPAIRS: Final = ("channel_repair_pending", "tpc_repair_pending")
_HISTOGRAM: Final = {
    "remap_banks_max": "max",
    "remap_banks_high": "high",
    "remap_banks_partial": "partial",
    "remap_banks_low": "low",
    "remap_banks_none": "none",
}
_SINGLE: Final[dict[str, Callable[[Any, Any], float]]] = {
    "retired_pages_single_bit": lambda nvml, gpu: len(nvml.nvmlDeviceGetRetiredPages(gpu, _SINGLE_BIT)),
    "retired_pages_double_bit": lambda nvml, gpu: len(nvml.nvmlDeviceGetRetiredPages(gpu, _DOUBLE_BIT)),
    "retired_pages_pending": lambda nvml, gpu: nvml.nvmlDeviceGetRetiredPagesPendingStatus(gpu),
    "unrepairable_memory": lambda nvml, gpu: nvml.nvmlDeviceGetUnrepairableMemoryFlag_v1(gpu),
    "ecc_enabled": lambda nvml, gpu: nvml.nvmlDeviceGetEccMode(gpu)[0],
    "mig_enabled": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0],
    "persistence_enabled": lambda nvml, gpu: nvml.nvmlDeviceGetPersistenceMode(gpu),
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000,
    "default_power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
    "application_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetApplicationsClock(gpu, _SM_CLOCK),
    "default_application_clock_mhz": lambda nvml, gpu: nvml.nvmlDeviceGetDefaultApplicationsClock(gpu, _SM_CLOCK),
    "temperature_slowdown_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(gpu, _SLOWDOWN),
    "temperature_max_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(gpu, _GPU_MAX),
    "memory_temperature_max_c": lambda nvml, gpu: nvml.nvmlDeviceGetTemperatureThreshold(gpu, _MEMORY_MAX),
    "pcie_max_generation": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu),
    "pcie_max_width": lambda nvml, gpu: nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu),
}


@dataclass(slots=True)
class InforomMemory:
    """Result of the newest validation of one board's InfoROM; ``at_s`` None: there was none."""

    is_valid: bool = False
    at_s: float | None = None


def read_states(sheet: Sheet, handle: Any, links: LinkMemory, inforom: InforomMemory, now_s: float) -> None:
    """Write the states on the sheet. ``now_s``: monotonic seconds. Raises GpuLostError."""
    sheet.take_one("sram_threshold_exceeded", partial(_sram_threshold, sheet.nvml, handle))
    sheet.take(tuple(_HISTOGRAM), partial(_histogram, sheet.nvml, handle))
    for name, read in _SINGLE.items():
        sheet.take_one(name, partial(read, sheet.nvml, handle))
    sheet.take(_PENDING_REPAIRS, lambda: sheet.nvml.nvmlDeviceGetRepairStatus(handle))
    sheet.take_one("inforom_valid", partial(_inforom_valid, sheet.nvml, handle, inforom, now_s))
    _read_links(sheet, handle, links)
    _read_fabric(sheet, handle)


def _sram_threshold(nvml: Any, handle: Any) -> float:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(status))
    return float(bool(status.bThresholdExceeded))


def _histogram(nvml: Any, handle: Any) -> list[float]:
    found = nvml.nvmlDeviceGetRowRemapperHistogram(handle)
    return [float(getattr(found, member)) for member in _HISTOGRAM.values()]


def _inforom_valid(nvml: Any, handle: Any, memory: InforomMemory, now_s: float) -> float:
    if memory.at_s is None or now_s - memory.at_s >= VALIDATE_EVERY_S:
        memory.is_valid = _validate(nvml, handle)
        memory.at_s = now_s
    return float(memory.is_valid)


def _validate(nvml: Any, handle: Any) -> bool:
    try:
        nvml.nvmlDeviceValidateInforom(handle)
    except nvml.NVMLError as error:
        if error.value != CORRUPTED_INFOROM:
            raise
        return False
    return True


def _read_links(sheet: Sheet, handle: Any, memory: LinkMemory) -> None:
    """Write the links' states, none for a card whose links were never up.

    A card for a PCIe slot has links with or without a bridge: without one they are all inactive permanently. On a board
    of a baseboard such links are down.
    """
    up: list[int] = []

    def count() -> tuple[float, float, float]:
        states = link_states(sheet.nvml, handle)
        up.extend(link for link, is_up in states.items() if is_up)
        memory.was_up = memory.was_up or bool(up)
        if not memory.was_up and _is_card(str(sheet.nvml.nvmlDeviceGetName(handle))):
            raise sheet.nvml.NVMLError(NOT_SUPPORTED)
        down = [link for link, is_up in states.items() if not is_up]
        _note_ends(sheet.nvml, handle, up, down, memory)
        return len(states), len(down), _bits_of(down)

    sheet.take(("nvlink_links", "nvlink_links_down", "nvlink_down_bits"), count)
    if up:
        sheet.take_one("nvlink_mb_per_s", lambda: _link_speed(sheet.nvml, handle))
        sheet.take(BIT_ERROR_RATES, lambda: read_bit_error_rates(sheet.nvml, handle, up))
    if "nvlink_links" in sheet.values:
        sheet.take(_TO_NOTHING, lambda: _to_nothing(sheet.nvml, handle, up))


def _note_ends(nvml: Any, handle: Any, up: list[int], down: list[int], memory: LinkMemory) -> None:
    """Note the links' other ends.

    They are read apart from the states: a driver that does not report the ends still reports the states.
    """
    named = Sheet(nvml)
    named.take_one("ends", partial(note_ends, nvml, handle, up, down, memory))


def _bits_of(links: Iterable[int]) -> float:
    return float(sum(1 << link for link in links))


def _is_card(model: str) -> bool:
    """Return whether the model's name is a card's: "NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL", "NVIDIA A40".

    A name that is in no list is a baseboard's, such as "NVIDIA H100 80GB HBM3": links that are down there are reported.
    """
    return not _CARDS.isdisjoint(model.upper().replace("-", " ").split())


def _link_speed(nvml: Any, handle: Any) -> float:
    (field,) = read_fields(nvml, handle, [NVLINK_SPEED])
    return number_of(nvml, field)


def _to_nothing(nvml: Any, handle: Any, links: list[int]) -> tuple[float, float]:
    found = [link for link in links if int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)) == NOTHING]
    return float(len(found)), _bits_of(found)


def _read_fabric(sheet: Sheet, handle: Any) -> None:
    sheet.take_one("fabric_state", partial(fabric_of, sheet.nvml, handle))
    found = sheet.values.get("fabric_state")
    if found is None:
        return
    sheet.values["fabric_state"] = found.state
    if is_registered(found):
        sheet.values |= {
            "fabric_status": found.status,
            "fabric_health_bits": found.healthMask,
            "fabric_clique": found.cliqueId,
        }
        if hasattr(found, "healthSummary"):
            sheet.values["fabric_health_summary"] = found.healthSummary


def is_registered(fabric: Any) -> bool:
    return bool(fabric.state == _REGISTERED)


def fabric_of(nvml: Any, handle: Any) -> Any:
    """Return NVML's fabric info, by the newest struct that this driver knows. Raises NVMLError."""
    try:
        return _fabric_as(nvml, handle, nvml.c_nvmlGpuFabricInfo_v3_t())
    except nvml.NVMLError as error:
        if error.value != UNKNOWN_VERSION:
            raise
    return _fabric_as(nvml, handle, nvml.c_nvmlGpuFabricInfo_v2_t())


def _fabric_as(nvml: Any, handle: Any, info: Any) -> Any:
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return info
