"""Identity of one GPU from NVML: each field has its value, or None and unsupported, or None and a fault."""

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from agents.probes.interface import GpuIdentity
from agents.probes.nvml_library import SUCCESS
from agents.probes.nvml_links import link_ends, link_states
from agents.probes.nvml_readings import memory_of
from agents.probes.nvml_sheet import Sheet
from muster.domain.ids import GpuUuid

_POWER_RANGE: Final = ("min_power_limit_w", "max_power_limit_w")


def _module_id(nvml: Any, handle: Any) -> int:
    """Return the module id, read into our own object: pynvml's default is one object for all threads."""
    module_id = ctypes.c_uint()
    code = nvml.nvmlDeviceGetModuleId(handle, ctypes.byref(module_id))
    if code != SUCCESS:  # with our own object pynvml leaves the check to us
        raise nvml.NVMLError(code)
    return module_id.value


def _compute_capability(nvml: Any, handle: Any) -> str:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return f"{major}.{minor}"


_IDENTITY_FIELDS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "model": lambda nvml, gpu: nvml.nvmlDeviceGetName(gpu),
    "serial": lambda nvml, gpu: nvml.nvmlDeviceGetSerial(gpu),
    "memory_bytes": lambda nvml, gpu: memory_of(nvml, gpu).total,
    "compute_capability": _compute_capability,
    "vbios_version": lambda nvml, gpu: nvml.nvmlDeviceGetVbiosVersion(gpu),
    "gsp_firmware_version": lambda nvml, gpu: nvml.nvmlDeviceGetGspFirmwareVersion(gpu).decode(),
    "inforom_version": lambda nvml, gpu: nvml.nvmlDeviceGetInforomImageVersion(gpu),
    "board_part_number": lambda nvml, gpu: nvml.nvmlDeviceGetBoardPartNumber(gpu),
    "pci_bus_id": lambda nvml, gpu: nvml.nvmlDeviceGetPciInfo(gpu).busId,
    "module_id": _module_id,
    "num_nvlinks": lambda nvml, gpu: len(link_states(nvml, gpu)),
    "nvlink_ends": link_ends,
    "is_mig_enabled": lambda nvml, gpu: nvml.nvmlDeviceGetMigMode(gpu)[0] == 1,
    "is_ecc_enabled": lambda nvml, gpu: nvml.nvmlDeviceGetEccMode(gpu)[0] == 1,
    "power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "default_power_limit_w": lambda nvml, gpu: nvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu) / 1000,
}


def read_identity(nvml: Any, uuid: GpuUuid, index: int, handle: Any) -> GpuIdentity:
    """Return the identity. Raises GpuLostError."""
    sheet = Sheet(nvml)
    for name, read in _IDENTITY_FIELDS.items():
        sheet.take_one(name, partial(read, nvml, handle))
    sheet.take(
        _POWER_RANGE,
        lambda: [limit / 1000 for limit in nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)],
    )
    return GpuIdentity(
        uuid=uuid, index=index, unsupported=frozenset(sheet.unsupported), faults=sheet.faults, **sheet.values
    )


def cuda_version(number: int) -> str:
    """Return the version: NVML gives 1000 · major + 10 · minor."""
    return f"{number // 1000}.{number % 1000 // 10}"
