"""XIDs at the time of the driver's report, and its other events as a reason for a check: an event set in a thread.

NVML delivers an XID once, to a waiting caller. GPUs are registered one by one, and one that refuses does not affect the
others; the kernel log reports the XIDs that are missed here (XID 79 may never reach NVML). An event of memory, of the
recovery action, of MIG or of the power source has a kind and nothing else, and a counter or state shows its meaning: so
it is no finding, but makes the next check earlier, and the same fault is not reported twice.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog

from agents.probes.interface import ProbeEvent
from agents.probes.nvml_library import NOT_SUPPORTED, TIMEOUT, text_of
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.evidence.state_readings import SINCE_BOOT_S
from muster.domain.ids import GpuUuid

XID_EVENT: Final = 0x8
"""nvmlEventTypeXidCriticalError."""
CHANGES: Final[Mapping[str, int]] = {
    "uncorrected ECC error": 0x2,
    "power source": 0x80,
    "MIG configuration": 0x100,
    "storm of corrected ECC errors": 0x200,
    "DRAM retirement": 0x400,
    "failed DRAM retirement": 0x800,
    "contained poison": 0x1000,
    "fatal poison": 0x2000,
    "GPU unavailable": 0x4000,
    "recovery action": 0x8000,
}
"""nvmlEventType… of rare events. P-states, clocks and single corrected errors occur all the time under load."""
_RECEIVED: Final = XID_EVENT | sum(CHANGES.values())
WAIT_MS: Final = 500
"""Longest time of one wait: the time that ``close`` may need."""
PAUSE_AFTER_ERROR_S: Final = 1.0
"""A lost GPU can make each wait fail at once."""

log = structlog.get_logger()


class EventWatcher:
    """The thread. ``deliver`` gets each XID and ``changed`` is called at another event, both in the watcher's thread.

    ``wall_ms``: milliseconds since 1970.
    """

    def __init__(
        self,
        nvml: Any,
        deliver: Callable[[ProbeEvent], None],
        changed: Callable[[], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._nvml = nvml
        self._deliver = deliver
        self._changed = changed
        self._wall_ms = wall_ms
        self._event_set: Any = None
        self._uuids: dict[int, GpuUuid] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_fault: int | None = None
        self._turned_s = time.monotonic()

    @property
    def age_s(self) -> float | None:
        """Return the seconds since its thread last came back from the driver; None where no thread waits."""
        return None if self._thread is None else time.monotonic() - self._turned_s

    def start(self) -> None:
        """Start the thread. Where the driver has no events at all, each GPU's registration fails."""
        try:
            self._event_set = self._nvml.nvmlEventSetCreate()
        except self._nvml.NVMLError:
            return
        self._thread = threading.Thread(target=self._watch, name="probe:xid", daemon=True)
        self._thread.start()

    def register(self, uuid: GpuUuid, handle: Any) -> None:
        """Register a GPU. Raises NVMLError where this GPU's XIDs cannot be received."""
        told = 0 if self._event_set is None else self._nvml.nvmlDeviceGetSupportedEventTypes(handle)
        if not told & XID_EVENT:
            raise self._nvml.NVMLError(NOT_SUPPORTED)
        self._uuids[_address(handle)] = uuid
        try:
            self._nvml.nvmlDeviceRegisterEvents(handle, told & _RECEIVED, self._event_set)
        except self._nvml.NVMLError:  # a driver may list more events than it allows to register
            self._nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, self._event_set)

    def close(self) -> bool:
        """End the thread, and return whether it ended and the set was freed."""
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(4 * WAIT_MS / 1000)
        if self._thread.is_alive():
            return False
        try:
            self._nvml.nvmlEventSetFree(self._event_set)
        except self._nvml.NVMLError as error:
            log.info("event_set_not_freed", words=text_of(error))  # the driver was unloaded, and the set with it
        return True

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                data = self._nvml.nvmlEventSetWait_v2(self._event_set, WAIT_MS)
            except self._nvml.NVMLError as error:
                self._turned_s = time.monotonic()
                self._pause_after(error)
                continue
            self._turned_s = time.monotonic()
            if data.eventType & XID_EVENT:
                self._deliver(self._event_of(data))
            else:
                self._note_change(data)

    def _pause_after(self, error: Any) -> None:
        """Handle a wait that ends without an event; another kind of fault than the last is logged."""
        is_new, self._last_fault = error.value != self._last_fault, error.value
        if error.value == TIMEOUT:
            return
        if is_new:
            log.warning("xid_wait_failed", words=text_of(error))
        self._stop.wait(PAUSE_AFTER_ERROR_S)

    def _note_change(self, data: Any) -> None:
        kinds = [name for name, bit in CHANGES.items() if data.eventType & bit]
        log.info("driver_told_of_a_change", gpu_uuid=self._uuid_of(data.device)[0], kinds=kinds)
        self._changed()

    def _event_of(self, data: Any) -> ProbeEvent:
        uuid, fault = self._uuid_of(data.device)
        code = int(data.eventData)
        return ProbeEvent(
            origin=f"nvml:{uuid or 'unknown'}:xid:{code}:{time.monotonic_ns()}",
            kind=EventKind.XID,
            source=Source.NVML,
            at_ms=self._wall_ms(),
            gpu_uuid=uuid,
            code=code,
            text=f"XID {code}{fault}",
            values={SINCE_BOOT_S: time.clock_gettime(time.CLOCK_BOOTTIME)},
        )

    def _uuid_of(self, handle: Any) -> tuple[GpuUuid | None, str]:
        known = self._uuids.get(_address(handle))
        if known is not None:
            return known, ""
        try:
            return GpuUuid(self._nvml.nvmlDeviceGetUUID(handle)), ""
        except self._nvml.NVMLError as error:
            return None, f" of a GPU whose UUID cannot be read: {text_of(error)}"


def _address(handle: Any) -> int:
    """Return the address in the handle: the driver gives the same opaque pointer for the same GPU."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
