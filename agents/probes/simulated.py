"""The probe of GPUs that do not exist: profiles of real ones, and faults read live from a file.

For the same seed, faults and times of the checks it gives the same values.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from agents.probes.faults import Fault, FaultFile
from agents.probes.interface import (
    WHOLE_GPU,
    ComputeDevice,
    GpuCheck,
    GpuIdentity,
    GpuInspection,
    HostInventory,
    ProbeError,
    ProbeEvent,
)
from agents.probes.presence import Presence
from agents.probes.profiles import SIMULATED_CUDA, SIMULATED_DRIVER, HardwareProfile
from agents.probes.simulated_inspection import simulated_inspection
from agents.probes.simulated_rates import simulated_rates
from agents.probes.simulated_readings import (
    Load,
    healthy_readings,
    is_lost_by,
    load_at,
    share_of,
    with_faults,
)
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.gpu.metrics import FROM_DCGM_ALONE, METRICS
from muster.domain.gpu.signal_groups import SignalGroup
from muster.domain.ids import GpuUuid

MIB: Final = 1024 * 1024
POLL_S: Final = 0.02
"""Interval in which ``events`` checks the file: a new fault is reported within 50 ms."""
KERNEL_LOG_DELAY_MS: Final = 3
"""The kernel log reports the same XID a little later."""

log = structlog.get_logger()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def simulated_uuids(num_gpus: int, seed: int = 0) -> tuple[GpuUuid, ...]:
    """Return UUIDs that no real GPU has; one set per seed up to 65,535."""
    return tuple(GpuUuid(f"GPU-51300000-{seed:04x}-4000-8000-{index:012d}") for index in range(num_gpus))


@dataclass(slots=True)
class _Energy:
    """Energy of one GPU, the sum of power over the time between checks."""

    joules: float = 0.0
    at_ms: int | None = None

    def grow(self, power_w: float, now_ms: int) -> float:
        if self.at_ms is not None:
            self.joules += power_w * max(0, now_ms - self.at_ms) / 1000
        self.at_ms = now_ms
        return self.joules


class SimulatedProbe:
    """The probe. ``faults_path``: the file of faults, or none. ``activity``: the load of a GPU, 0 to 1.

    None as its result, or no function, means the GPU's own rhythm. ``wall_ms``: milliseconds since 1970, by which
    faults are due.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        uuids: Sequence[GpuUuid],
        *,
        seed: int = 0,
        faults_path: Path | None = None,
        activity: Callable[[GpuUuid], float | None] | None = None,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._profile = profile
        self._slots = {uuid: index for index, uuid in enumerate(uuids)}
        self._seed = seed
        self._file = FaultFile(faults_path, lambda words: log.warning("fault_file_unreadable", words=words))
        self._activity = activity
        self._wall_ms = wall_ms
        self._lock = Lock()
        self._presence = Presence(session=str(time.monotonic_ns()))
        self._presence.start(uuids, len(uuids))
        self._latest_ms = 0
        self._next_due_ms = math.inf
        self._reported: set[str] = set()
        self._pending: list[ProbeEvent] = []
        self._energy = {uuid: _Energy() for uuid in uuids}

    def identify(self) -> HostInventory:
        return HostInventory(
            driver_version=SIMULATED_DRIVER,
            cuda_version=SIMULATED_CUDA,
            gpus=tuple(self._identity(uuid, index) for uuid, index in self._slots.items()),
            is_simulated=True,
        )

    def check(self, now_ms: int) -> tuple[GpuCheck, ...]:
        with self._lock:
            faults = self._faults_by_gpu(now_ms)
            self._notice(faults, now_ms)
            return tuple(self._check_of(uuid, index, now_ms, faults[uuid]) for uuid, index in self._slots.items())

    def inspect(self, now_ms: int) -> tuple[GpuInspection, ...]:
        with self._lock:
            faults = self._faults_by_gpu(now_ms)
            self._notice(faults, now_ms)  # the file counts as read: its new faults must still be reported
            words = {
                "model": self._profile.model,
                "vbios_version": self._profile.vbios_version,
                "gsp_firmware_version": SIMULATED_DRIVER,
                "inforom_version": self._profile.inforom_version,
                "board_part_number": self._profile.board_part_number,
                "cuda_version": SIMULATED_CUDA,
            }
            return tuple(
                simulated_inspection(self._profile, uuid, index, faults[uuid], now_ms, words)
                for uuid, index in self._slots.items()
            )

    def events(self, timeout_s: float) -> tuple[ProbeEvent, ...]:
        until_s = time.monotonic() + timeout_s
        while True:
            found = self._take_events()
            left_s = until_s - time.monotonic()
            if found or left_s <= 0:
                return found
            time.sleep(min(POLL_S, left_s))

    def ages_s(self) -> Mapping[SignalGroup, float]:
        return {}

    def take_change(self) -> bool:
        """Return False: a simulated GPU's readings show all that its driver reports."""
        return False

    def compute_device(self, gpu_uuid: GpuUuid) -> ComputeDevice:
        if gpu_uuid not in self._slots:
            raise ProbeError(f"{gpu_uuid} is no GPU of this host")
        with self._lock:
            now_ms = self._wall_ms()
            every = self._faults_by_gpu(now_ms)
            self._notice(every, now_ms)  # the file counts as read: its new faults must still be reported
        faults = every[gpu_uuid]
        if any(is_lost_by(fault) for fault in faults):
            raise ProbeError(f"{gpu_uuid} is lost (simulated)")
        kinds = {fault.kind for fault in faults}
        rates = simulated_rates(self._profile, share_of(self._seed, gpu_uuid, "rates"), is_slow="slow" in kinds)
        return ComputeDevice("cpu", is_wrong="wrong_result" in kinds, rates=rates)

    def close(self) -> None:
        """Release nothing: the probe holds nothing."""

    def _take_events(self) -> tuple[ProbeEvent, ...]:
        with self._lock:
            now_ms = self._wall_ms()
            if not self._pending and not self._file.has_changed and now_ms < self._next_due_ms:
                return ()
            self._notice(self._faults_by_gpu(now_ms), now_ms)
            found, self._pending = tuple(self._pending), []
            return found

    def _faults_by_gpu(self, now_ms: int) -> dict[GpuUuid, list[Fault]]:
        """Return the faults that are due by now; faults of other hosts' GPUs are not ours.

        Time only moves forward: a check at a time before a fault began must not undo it.
        """
        self._latest_ms = max(self._latest_ms, now_ms)
        due: dict[GpuUuid, list[Fault]] = {uuid: [] for uuid in self._slots}
        ours = [fault for fault in self._file.faults() if fault.gpu in due]
        for fault in ours:
            if fault.at_ms <= self._latest_ms:
                due[GpuUuid(fault.gpu)].append(fault)
        self._next_due_ms = min((fault.at_ms for fault in ours if fault.at_ms > self._latest_ms), default=math.inf)
        return due

    def _notice(self, faults: dict[GpuUuid, list[Fault]], now_ms: int) -> None:
        """Queue new events; forget faults that were cleared."""
        standing = {fault.key: fault for of_gpu in faults.values() for fault in of_gpu}
        for key, fault in standing.items():
            if key not in self._reported and fault.kind == "xid":
                self._pending.extend(self._xid_events(fault, now_ms))
        self._reported = set(standing)
        for uuid, of_gpu in faults.items():
            is_lost = any(is_lost_by(fault) for fault in of_gpu)
            change = self._presence.saw(uuid, now_ms, is_lost=is_lost)
            if change is not None:
                self._pending.append(change)

    def _xid_events(self, fault: Fault, now_ms: int) -> list[ProbeEvent]:
        event = ProbeEvent(
            origin=f"simulated:{fault.key}",
            kind=EventKind.XID,
            source=Source.NVML,
            at_ms=fault.at_ms or now_ms,
            gpu_uuid=GpuUuid(fault.gpu),
            code=fault.code,
            text=f"XID {fault.code} (simulated)",
        )
        if not fault.is_in_kernel_log:
            return [event]
        bus = self._pci_bus_id(self._slots[GpuUuid(fault.gpu)])
        from_log = replace(
            event,
            origin=f"{event.origin}:kernel_log",
            source=Source.KERNEL_LOG,
            at_ms=event.at_ms + KERNEL_LOG_DELAY_MS,
            text=f"NVRM: Xid (PCI:{bus[4:-2]}): {fault.code}, pid='<unknown>', name=<unknown> (simulated)",
        )
        return [event, from_log]

    def _check_of(self, uuid: GpuUuid, index: int, now_ms: int, faults: list[Fault]) -> GpuCheck:
        found = GpuCheck(gpu_uuid=uuid, index=index, at_ms=now_ms)
        if any(is_lost_by(fault) for fault in faults):
            return replace(found, is_lost=True, faults={WHOLE_GPU: "GPU is lost (simulated)"})
        if any(fault.kind == "late" for fault in faults):
            return replace(found, is_late=True, faults={WHOLE_GPU: "no answer within the deadline (simulated)"})
        noise = share_of(self._seed, uuid, "noise", now_ms // 1000)
        readings = with_faults(self._profile, healthy_readings(self._profile, self._load(uuid, now_ms), noise), faults)
        readings["energy_j"] = self._energy[uuid].grow(readings["power_w"], now_ms)
        unsupported = self._profile.unsupported
        absent = unsupported | FROM_DCGM_ALONE
        return replace(
            found,
            values=tuple(None if metric.name in absent else float(readings[metric.name]) for metric in METRICS),
            unsupported=unsupported,
        )

    def _load(self, uuid: GpuUuid, now_ms: int) -> Load:
        stated = self._activity(uuid) if self._activity is not None else None
        return load_at(self._seed, uuid, now_ms) if stated is None else Load(stated, stated)

    def _identity(self, uuid: GpuUuid, index: int) -> GpuIdentity:
        profile = self._profile
        return GpuIdentity(
            uuid=uuid,
            index=index,
            model=profile.model,
            serial=f"SIM-{uuid.removeprefix('GPU-')}",
            memory_bytes=profile.memory_mib * MIB,
            compute_capability=profile.compute_capability,
            vbios_version=profile.vbios_version,
            gsp_firmware_version=SIMULATED_DRIVER,
            inforom_version=profile.inforom_version,
            board_part_number=profile.board_part_number,
            pci_bus_id=self._pci_bus_id(index),
            module_id=index + 1,
            num_nvlinks=profile.num_nvlinks,
            nvlink_ends=dict.fromkeys(range(profile.num_nvlinks), "switch"),
            is_mig_enabled=False,
            is_ecc_enabled=True,
            power_limit_w=profile.power_limit_w,
            default_power_limit_w=profile.power_limit_w,
            min_power_limit_w=profile.min_power_limit_w,
            max_power_limit_w=profile.power_limit_w,
        )

    @staticmethod
    def _pci_bus_id(index: int) -> str:
        return f"00000000:{0x10 + index:02X}:00.0"
