"""NVLink, link by link: which exist, which are up, and their error counters summed over all links.

A link that is not supported does not exist; one that is down does, and is not counted as active.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from agents.probes.nvml_fields import (
    NVLINK_RECEIVE_ERRORS,
    NVLINK_RECOVERY_EVENTS,
    NVLINK_RETRY_BLOCKS,
    number_of,
    read_fields,
)
from agents.probes.nvml_library import INVALID_ARGUMENT, NOT_SUPPORTED, UNSUPPORTED_CODES
from agents.probes.nvml_link_bytes import RECEIVED, SENT, LinkBytes, read_link_bytes
from agents.probes.nvml_sheet import Sheet
from health.xid.kernel_log import address_of

_LINK_COUNTERS: Final = {"nvlink_crc_errors": (2, 3), "nvlink_replays": (0,), "nvlink_recoveries": (1,)}
"""Metric → NVML_NVLINK_ERROR_DL_*: CRC of flow control (2) and of data (3), replay (0), recovery (1)."""
_LINK_FIELDS: Final = {
    "nvlink_crc_errors": NVLINK_RECEIVE_ERRORS,
    "nvlink_replays": NVLINK_RETRY_BLOCKS,
    "nvlink_recoveries": NVLINK_RECOVERY_EVENTS,
}
"""Fields that replace them from NVLink 5 on (the choice of NVIDIA's resiliency extension, gpu-health §2.8)."""


NOTHING: Final = 255
"""NVML_NVLINK_DEVICE_TYPE_UNKNOWN, at the other end of a link."""
_ENDS_REPORTED: Final = 5
_ENDS: Final = {0: "gpu", 1: "cpu", 2: "switch"}
"""NVML_NVLINK_DEVICE_TYPE_*."""


@dataclass(slots=True)
class LinkMemory:
    """The newest count of each link, so that a sum does not fall when a link stops answering."""

    counts: dict[tuple[str, int, int], float] = field(default_factory=dict)
    """Count by (metric, counter or field, link)."""
    was_up: bool = False
    """True once any link was up since the agent began."""
    ends: dict[int, str] = field(default_factory=dict)
    """Link → its other end when it was up; read again after the link was down."""
    bytes: LinkBytes = field(default_factory=LinkBytes)
    down: tuple[int, ...] = ()
    """Links that were down at the newest inspection."""

    def words_of_down(self) -> dict[str, str]:
        """Return the first few links down for a cable's ticket, by the names of ``state_readings.GPU_WORDS``."""
        told = [f"{link}/{self.ends.get(link, 'unknown').replace(' ', '/')}" for link in self.down[:_ENDS_REPORTED]]
        return {"nvlink_ends_down": "+".join(told)} if told else {}

    def total(self, metric: str) -> float | None:
        found = [count for (name, _, _), count in self.counts.items() if name == metric]
        return sum(found) if found else None

    def by_link(self) -> dict[int, dict[str, float]]:
        """Return link → metric → its newest count."""
        found: dict[int, dict[str, float]] = {}
        for (metric, _, link), count in tuple(self.counts.items()):
            of_link = found.setdefault(link, {})
            of_link[metric] = of_link.get(metric, 0.0) + count
        return found


def link_states(nvml: Any, handle: Any) -> dict[int, bool]:
    """Return link → is up, of the links that exist. Raises NVMLError NOT_SUPPORTED where there is none."""
    states: dict[int, bool] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            states[link] = nvml.nvmlDeviceGetNvLinkState(handle, link) == 1
        except nvml.NVMLError as error:
            if error.value == INVALID_ARGUMENT:  # past the last link
                break
            if error.value not in UNSUPPORTED_CODES:
                raise
    if not states:
        raise nvml.NVMLError(NOT_SUPPORTED)
    return states


def link_ends(nvml: Any, handle: Any) -> dict[int, str]:
    """Return link that is up → its other end. Raises NVMLError."""
    up = [link for link, is_up in link_states(nvml, handle).items() if is_up]
    return {link: _end_of(nvml, handle, link) for link in up}


def note_ends(nvml: Any, handle: Any, up: Iterable[int], down: Iterable[int], memory: LinkMemory) -> None:
    """Keep the other ends of links that are up: the driver does not report them for a link down. Raises NVMLError."""
    came_up = set(memory.down)
    memory.down = tuple(sorted(down))
    for link in up:
        if link not in memory.ends or link in came_up:
            kind, _, place = _end_of(nvml, handle, link).partition(" ")
            memory.ends[link] = f"{kind} {address_of(place)}" if place else kind


def _end_of(nvml: Any, handle: Any, link: int) -> str:
    kind = int(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link))
    if kind == NOTHING:
        return "nothing"
    named = _ENDS.get(kind, f"kind {kind}")
    try:
        return f"{named} {nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId}"
    except nvml.NVMLError as error:
        if error.value not in UNSUPPORTED_CODES:
            raise
        return named


def read_links(sheet: Sheet, handle: Any, memory: LinkMemory, now_s: float) -> None:
    """Write the NVLink metrics on the sheet. ``now_s``: by a clock that only grows."""
    states: dict[int, bool] = {}

    def read_states() -> int:
        states.update(link_states(sheet.nvml, handle))
        return sum(states.values())

    sheet.take_one("nvlink_active_links", read_states)
    if states:
        for metric in _LINK_COUNTERS:
            sheet.take_one(metric, _counter_reader(sheet.nvml, handle, metric, list(states), memory))
        read_link_bytes(sheet, handle, [link for link, is_up in states.items() if is_up], memory.bytes, now_s)
        return
    for metric in (*_LINK_COUNTERS, SENT, RECEIVED):
        if "nvlink_active_links" in sheet.unsupported:
            sheet.unsupported.add(metric)
        else:
            sheet.faults[metric] = sheet.faults["nvlink_active_links"]


def _counter_reader(nvml: Any, handle: Any, metric: str, links: list[int], memory: LinkMemory) -> Callable[[], float]:
    def read() -> float:
        for counter in _LINK_COUNTERS[metric]:
            for link in links:
                _keep(nvml, memory, (metric, counter, link), _error_counter(nvml, handle, link, counter))
        if memory.total(metric) is None:
            _read_as_fields(nvml, handle, metric, links, memory)
        total = memory.total(metric)
        if total is None:
            raise nvml.NVMLError(NOT_SUPPORTED)
        return total

    return read


def _read_as_fields(nvml: Any, handle: Any, metric: str, links: list[int], memory: LinkMemory) -> None:
    field_id = _LINK_FIELDS[metric]
    for link, found in zip(links, read_fields(nvml, handle, [(field_id, link) for link in links]), strict=True):
        _keep(nvml, memory, (metric, field_id, link), partial(number_of, nvml, found))


def _error_counter(nvml: Any, handle: Any, link: int, counter: int) -> Callable[[], float]:
    return lambda: float(nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter))


def _keep(nvml: Any, memory: LinkMemory, key: tuple[str, int, int], read: Callable[[], float]) -> None:
    """Store a count; an unsupported counter, or one of a link that is down, leaves the known count."""
    try:
        memory.counts[key] = read()
    except nvml.NVMLError as error:
        if error.value not in UNSUPPORTED_CODES and error.value != INVALID_ARGUMENT:
            raise
