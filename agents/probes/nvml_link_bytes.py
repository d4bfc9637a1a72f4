"""Bytes per second over a GPU's NVLinks: two fields a link, all in one call, as rates since the check before.

Each link has a rate of its own: in one sum, a link that comes up would add all bytes of its past.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product, repeat
from typing import Any, Final

from agents.probes.nvml_fields import NVLINK_BYTES, NVLINK_DATA_KIB, exact_number_of, read_fields
from agents.probes.nvml_library import INVALID_ARGUMENT, NOT_SUPPORTED, UNSUPPORTED_CODES
from agents.probes.nvml_sheet import Sheet
from agents.rates import ByteRates

SENT: Final = "nvlink_sent_bytes_per_s"
RECEIVED: Final = "nvlink_received_bytes_per_s"
_DIRECTIONS: Final = (SENT, RECEIVED)
_KIB: Final = 1024
_LINK_BYTES_PER_S: Final = 100e9
"""The most that one link carries in one direction: NVLink 6; NVLink 4 carries a quarter."""
_FIELD_PAIRS: Final = ((NVLINK_DATA_KIB, _KIB), (NVLINK_BYTES, 1))
"""Fields of (sent, received), and the bytes of their unit: the first that the driver has. NVLink 5 has the second."""


@dataclass(slots=True)
class LinkBytes:
    """Counters of one GPU's links, by direction and link. ``source``: of ``_FIELD_PAIRS``; None: none answered yet."""

    source: int | None = None
    rates: ByteRates[tuple[str, int]] = field(default_factory=ByteRates)


def read_link_bytes(sheet: Sheet, handle: Any, links: Sequence[int], memory: LinkBytes, now_s: float) -> None:
    """Write the rates on the sheet; nothing where they are not known yet. ``links``: the links that are up."""
    if links:
        sheet.take(_DIRECTIONS, lambda: _rates(sheet.nvml, handle, links, memory, now_s))


def _rates(
    nvml: Any, handle: Any, links: Sequence[int], memory: LinkBytes, now_s: float
) -> tuple[float | None, float | None]:
    """Return the rates of both directions. Raises NVMLError NOT_SUPPORTED where the driver counts no bytes."""
    found = memory.rates.read(_counts(nvml, handle, links, memory), now_s, _LINK_BYTES_PER_S)
    return _sum(found, SENT), _sum(found, RECEIVED)


def _sum(rates: Mapping[tuple[str, int], float | None], direction: str) -> float | None:
    known = [rate for (name, _), rate in rates.items() if name == direction and rate is not None]
    return sum(known) if known else None


def _counts(nvml: Any, handle: Any, links: Sequence[int], memory: LinkBytes) -> dict[tuple[str, int], int]:
    for source in range(len(_FIELD_PAIRS)) if memory.source is None else (memory.source,):
        fields, unit_bytes = _FIELD_PAIRS[source]
        answers = read_fields(nvml, handle, [(each, link) for each in fields for link in links])
        counts = map(_count, repeat(nvml), answers)
        found = {
            key: count * unit_bytes
            for key, count in zip(product(_DIRECTIONS, links), counts, strict=True)
            if count is not None
        }
        if found:
            memory.source = source
            return found
    raise nvml.NVMLError(NOT_SUPPORTED)


def _count(nvml: Any, answer: Any) -> int | None:
    """Return the count; None where this link has none. Raises NVMLError."""
    try:
        return int(exact_number_of(nvml, answer))
    except nvml.NVMLError as error:
        if error.value not in UNSUPPORTED_CODES and error.value != INVALID_ARGUMENT:
            raise
        return None
