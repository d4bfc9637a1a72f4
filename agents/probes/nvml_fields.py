"""NVML's field values: each one carries its own return code and type, and both are checked."""

from collections.abc import Sequence
from typing import Any, Final

from agents.probes.nvml_library import INVALID_ARGUMENT, NOT_SUPPORTED, SUCCESS

MEMORY_TEMPERATURE: Final = 82
"""NVML_FI_DEV_MEMORY_TEMP, °C."""
NVLINK_SPEED: Final = 90
"""NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON: MB/s of an active link."""
NVLINK_DATA_KIB: Final = (138, 139)
"""NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and RX, scoped by link: KiB of payload so far."""
NVLINK_BYTES: Final = (202, 204)
"""NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and RCV_BYTES, scoped by link: bytes so far, from NVLink 5 on."""
RECOVERY_ACTION: Final = 230
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
PCIE_CORRECTABLE_ERRORS: Final = 173
"""NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS (AER)."""
SW_THERMAL_SLOWDOWN: Final = 269
HW_THERMAL_SLOWDOWN: Final = 270
POWER_BRAKE_SLOWDOWN: Final = 271
"""NVML_FI_DEV_CLOCKS_EVENT_REASON_*: ns for which clocks were held down."""
NVLINK_RECEIVE_ERRORS: Final = 208
NVLINK_RECOVERY_EVENTS: Final = 215
NVLINK_SYMBOL_ERRORS: Final = 221
NVLINK_RETRY_BLOCKS: Final = 295
NVLINK_EFFECTIVE_BER: Final = 220
NVLINK_SYMBOL_BER: Final = 222
"""Counters of NVLink 5 (Blackwell), scoped by link; the older functions have no answer there."""

C2C_ERRORS: Final = 231
C2C_REPLAYS: Final = 232
C2C_BACK_TO_BACK_REPLAYS: Final = 233
"""NVML_FI_DEV_C2C_LINK_ERROR_*: of the link to the CPU on one package, such as GH200's."""

Field = int | tuple[int, int]
"""A field's id, or (id, scope): the scope is the link for per-link fields."""

_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union by NVML_VALUE_TYPE_*."""


def read_fields(nvml: Any, handle: Any, fields: Sequence[Field]) -> list[Any]:
    """Read all fields in one call. Raises NVMLError where the call as a whole failed."""
    return list(nvml.nvmlDeviceGetFieldValues(handle, list(fields)))


def number_of(nvml: Any, field: Any) -> float:
    """Return the number in one field value. Raises as ``exact_number_of``."""
    return float(exact_number_of(nvml, field))


def exact_number_of(nvml: Any, field: Any) -> int | float:
    """Return the number in one field value as the driver has it: counters of bytes exceed 2^53.

    Raises NVMLError by its own code, ValueError at a type that we do not know.
    """
    if field.nvmlReturn == INVALID_ARGUMENT:  # a driver older than the field
        raise nvml.NVMLError(NOT_SUPPORTED)
    if field.nvmlReturn != SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    if field.valueType >= len(_MEMBERS):
        raise ValueError(f"field {field.fieldId} has the unknown value type {field.valueType}")
    number: int | float = getattr(field.value, _MEMBERS[field.valueType])
    return number
