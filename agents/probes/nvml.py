"""The probe of real GPUs, on nvidia-ml-py.

Each GPU is asked in a thread of its own with a deadline, so that one that is lost or hangs never stops the others.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

from agents.probes import nvml_library
from agents.probes.interface import (
    WHOLE_GPU,
    ComputeDevice,
    GpuCheck,
    GpuIdentity,
    GpuInspection,
    HostInventory,
    ProbeError,
    ProbeEvent,
    ReleasedError,
)
from agents.probes.nvml_answers import check_of, inspection_of, timed
from agents.probes.nvml_devices import Device, DeviceList
from agents.probes.nvml_driver import Driver
from agents.probes.nvml_events import EventWatcher
from agents.probes.nvml_identity import cuda_version, read_identity
from agents.probes.nvml_inspection import inspect
from agents.probes.nvml_pairs import read_pairs
from agents.probes.nvml_readings import poll
from agents.probes.presence import Presence
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.ids import GpuUuid

DEADLINE_S: Final = 2.0
"""Limit of one GPU's time for a check."""
_TURN_S: Final = 0.1
XID_EVENTS: Final = "xid_events"
"""Name under which an identity states that a GPU's XIDs cannot be received."""


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class NvmlProbe:
    """The probe of real GPUs. ``open_nvml_probe`` opens it; the interface describes the methods."""

    def __init__(
        self, nvml: Any, *, deadline_s: float, wall_ms: Callable[[], int], clock_s: Callable[[], float]
    ) -> None:
        self._nvml = nvml
        self._driver = Driver(nvml, deadline_s)
        self._lock = Lock()
        self._is_released = False
        self._events: SimpleQueue[ProbeEvent | None] = SimpleQueue()
        self._has_changed = False
        self._wall_ms = wall_ms
        self._clock_s = clock_s
        self._watcher = self._new_watcher()
        self._devices = DeviceList(self._driver, self._listen)
        self._presence = Presence(session=str(time.monotonic_ns()))
        self._identities: dict[GpuUuid, GpuIdentity] = {}

    def start(self) -> None:
        """Start the driver and the watcher. Raises ProbeError."""
        self._driver.start()
        self._watcher.start()
        self._devices.refresh(self._devices.count())
        self._presence.start(self._devices.listed, self._devices.num_listed)

    def identify(self) -> HostInventory:
        with self._turn() as has_driver:
            if not has_driver:
                raise ReleasedError
            self._devices.refresh(self._devices.count())
            listed = self._devices.listed
            answers = self._driver.each(
                {
                    uuid: partial(read_identity, self._nvml, uuid, device.index, device.handle)
                    for uuid, device in listed.items()
                }
            )
            for uuid, device in listed.items():
                self._identities[uuid] = self._identity_of(device, answers[uuid])
            return HostInventory(
                driver_version=self._driver.words(self._nvml.nvmlSystemGetDriverVersion),
                cuda_version=self._driver.words(lambda: cuda_version(self._nvml.nvmlSystemGetCudaDriverVersion_v2())),
                gpus=tuple(sorted((self._identities[uuid] for uuid in listed), key=lambda gpu: gpu.index)),
                nameless=self._devices.nameless,
            )

    def check(self, now_ms: int) -> tuple[GpuCheck, ...]:
        with self._turn() as has_driver:
            if not has_driver:
                return self._released_checks(now_ms)
            count = self._devices.count()
            if count != self._devices.num_listed or self._devices.nameless:
                self._devices.refresh(count)
            self._report(self._presence.counted(count, now_ms))
            answers = self._driver.each(
                {
                    uuid: partial(timed, partial(poll, self._nvml, device.handle, device.links, self._clock_s))
                    for uuid, device in self._devices.listed.items()
                }
            )
            checks = [check_of(uuid, index, now_ms, answers.get(uuid)) for uuid, index in self._devices.slots.items()]
            for found in checks:
                self._notice(found)
            return tuple(sorted(checks, key=lambda found: found.index))

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:  # noqa: ARG002  # of the interface; counters have no date
        with self._turn() as has_driver:
            if not has_driver:
                return ()
            devices = self._devices.listed
            now_s = self._clock_s()
            answers = self._driver.each(
                {
                    uuid: partial(inspect, self._nvml, device.handle, device.links, device.inforom, device.gpm, now_s)
                    for uuid, device in devices.items()
                }
            )
            found = [inspection_of(uuid, device.index, answers[uuid]) for uuid, device in devices.items()]
            found = self._with_pairs(found)
        return tuple(sorted(found, key=lambda inspection: inspection.index))

    def _with_pairs(self, found: list[GpuInspection]) -> list[GpuInspection]:
        """Return the inspections with each GPU's access to the others' memory.

        GPUs that did not answer or are split by MIG have none.
        """
        asked = {
            each.gpu_uuid: self._devices.listed[each.gpu_uuid]
            for each in found
            if each.state and not each.state.get("mig_enabled")
        }
        if len(asked) < 2:
            return found
        told = self._driver.each({"pairs": partial(read_pairs, self._nvml, asked)})["pairs"]
        if isinstance(told, BaseException):
            return found
        return [replace(each, state={**each.state, **told.get(each.gpu_uuid, {})}) for each in found]

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        found: list[ProbeEvent | None] = []
        try:
            found.append(self._events.get(timeout=timeout_s))
            while True:
                found.append(self._events.get_nowait())
        except Empty:
            self._has_changed |= None in found
            return tuple(event for event in found if event is not None)

    def take_change(self) -> bool:
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def ages_s(self) -> Mapping[SignalGroup, float]:
        age_s = self._watcher.age_s
        return {} if age_s is None else {SignalGroup.XID_EVENTS: age_s}

    def compute_device(self, gpu_uuid: GpuUuid) -> ComputeDevice:
        with self._turn() as has_driver:
            if not has_driver:
                raise ReleasedError
            if gpu_uuid not in self._devices.listed:
                raise ProbeError(f"{gpu_uuid} is not among the GPUs that the driver lists")
        return ComputeDevice("cuda")

    def close(self) -> None:
        # Under a call that hangs, a shutdown would hang or crash too.
        if self._watcher.close() and self._driver.is_idle:
            self._driver.stop()

    def _new_watcher(self) -> EventWatcher:
        """Return a watcher that puts a change as None between the events, so that a waiting thread wakes at once."""
        return EventWatcher(self._nvml, self._events.put, lambda: self._events.put(None), self._wall_ms)

    def _listen(self, uuid: GpuUuid, handle: Any) -> None:
        """Register with the present watcher: ``released`` makes a new one."""
        self._watcher.register(uuid, handle)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release the driver for a reset or a reload: callers get that as the answer meanwhile. Raises ProbeError."""
        with self._lock:
            if not (self._driver.is_idle and self._watcher.close()):
                raise ProbeError("a call hangs in the driver, so the agent cannot release it")
            for device in self._devices.listed.values():
                device.gpm.drop(self._nvml)
            self._driver.stop()
            self._is_released = True
            try:
                yield
            finally:
                self._is_released = False
                self._watcher = self._new_watcher()
                self._devices.forget()
                self._driver.start()
                self._watcher.start()
                self._devices.refresh(self._devices.count())

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        """Yield the driver to one caller at a time; False: it is released, and cannot be asked."""
        while not self._lock.acquire(timeout=_TURN_S):
            if self._is_released:
                yield False
                return
        try:
            yield True
        finally:
            self._lock.release()

    def _released_checks(self, now_ms: int) -> tuple[GpuCheck, ...]:
        """Return late checks, neither lost nor found. A GPU that was lost before is still lost, and has no event."""
        known = partial(GpuCheck, at_ms=now_ms, faults={WHOLE_GPU: str(ReleasedError())}, is_released=True)
        slots = sorted(self._devices.slots.items(), key=itemgetter(1))
        lost = {uuid for uuid, is_lost in self._presence.known.items() if is_lost}
        return tuple(
            known(gpu_uuid=uuid, index=index, is_lost=uuid in lost, is_late=uuid not in lost) for uuid, index in slots
        )

    def _identity_of(self, device: Device, answer: GpuIdentity | BaseException) -> GpuIdentity:
        if isinstance(answer, BaseException):
            before = self._identities.get(device.uuid, GpuIdentity(uuid=device.uuid, index=device.index))
            identity = replace(before, index=device.index, faults={**before.faults, WHOLE_GPU: str(answer)})
        else:
            identity = answer
        unheard = self._devices.unreachable.get(device.uuid)
        if unheard is None:
            return identity
        if getattr(unheard, "value", None) in nvml_library.UNSUPPORTED_CODES:
            return replace(identity, unsupported=identity.unsupported | {XID_EVENTS})
        return replace(identity, faults={**identity.faults, XID_EVENTS: str(unheard)})

    def _notice(self, found: GpuCheck) -> None:
        if not found.is_late:
            text = found.faults.get(WHOLE_GPU, "")
            self._report(self._presence.saw(found.gpu_uuid, found.at_ms, is_lost=found.is_lost, text=text))

    def _report(self, event: ProbeEvent | None) -> None:
        if event is not None:
            self._events.put(event)


def open_nvml_probe(
    *,
    deadline_s: float = DEADLINE_S,
    wall_ms: Callable[[], int] = _wall_ms,
    clock_s: Callable[[], float] = time.monotonic,
) -> NvmlProbe:
    """Return a started probe. ``clock_s``: seconds by a clock that only grows, for rates of counters.

    Raises ProbeError: no package, driver not there or not loaded, no permission, no answer.
    """
    probe = NvmlProbe(nvml_library.load(), deadline_s=deadline_s, wall_ms=wall_ms, clock_s=clock_s)
    probe.start()
    return probe
