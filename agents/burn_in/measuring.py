"""Burn-ins of a host's GPUs: counters before, the bench, counters after."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from agents import host_facts
from agents.burn_in.bench_process import NO_OPERATIONS, Bench, Measured, Operations
from agents.burn_in.clock_watch import ClockWatch, is_throttled
from agents.dcgm.diagnosing import DcgmDiag, Diagnosed, DiagnosingError
from agents.probes.interface import ComputeDevice, GpuCheck, GpuIdentity, HostInventory, Probe, ProbeError
from health.burn_in import coverage_of
from muster.domain.evidence.traits import FaultGroup
from muster.domain.gpu.metrics import METRICS, Values, value_of
from muster.domain.ids import GpuUuid
from muster.wire.burn_in import ExactSum, Figures, VendorTests

COUNTERS: Final = tuple(metric.name for metric in METRICS if metric.kind == "counter" and metric.name != "energy_j")
WORDS_MAX: Final = 1000
FAILURES_MAX: Final = 64
Take = Callable[[GpuUuid, "Figures | str"], None]
"""Called for each GPU with its figures, or with the reason why there are none."""


@dataclass(frozen=True, slots=True)
class _Before:
    """Facts about a GPU before its run."""

    device: ComputeDevice
    identity: GpuIdentity
    driver: str
    values: Values


@dataclass(frozen=True, slots=True)
class Measuring:
    """The measuring of GPUs. ``diag``: the vendor's tests, on real GPUs, in the time that the bench left."""

    probe: Probe
    bench: Bench
    wall_ms: Callable[[], int] = host_facts.wall_ms
    diag: DcgmDiag | None = None

    def run(
        self,
        gpus: Mapping[GpuUuid, float],
        stop: threading.Event,
        take: Take,
        operations: Operations = NO_OPERATIONS,
    ) -> None:
        """Measure GPUs. ``gpus``: each with its deadline in seconds. ``operations``: a suspect one, by GPU.

        Simulated ones share a process, real ones run one by one.
        """
        known = self._known(list(gpus), take)
        simulated = {uuid: before for uuid, before in known.items() if before.device.is_simulated}
        batches = [simulated] if simulated else []
        batches += [{uuid: before} for uuid, before in known.items() if uuid not in simulated]
        for batch in batches:
            deadline_s = min(gpus[uuid] for uuid in batch)
            self._measure(batch, deadline_s, stop, take, operations)

    def _known(self, uuids: list[GpuUuid], take: Take) -> dict[GpuUuid, _Before]:
        try:
            inventory = self.probe.identify()
            checks = self._checks()
        except ProbeError as error:
            for uuid in uuids:
                take(uuid, _printable(str(error)))
            return {}
        found: dict[GpuUuid, _Before] = {}
        for uuid in uuids:
            try:
                found[uuid] = self._before(uuid, inventory, checks)
            except ProbeError as error:
                take(uuid, _printable(str(error)))
        return found

    def _before(self, uuid: GpuUuid, inventory: HostInventory, checks: Mapping[GpuUuid, GpuCheck]) -> _Before:
        device = self.probe.compute_device(uuid)
        identity = next((gpu for gpu in inventory.gpus if gpu.uuid == uuid), None)
        check = checks.get(uuid)
        if identity is None or check is None or check.is_lost or check.is_late:
            raise ProbeError("the GPU does not answer")
        if identity.is_mig_enabled:
            raise ProbeError("the GPU is in MIG mode, and a burn-in needs the whole of it")
        num_processes = value_of(check.values, "num_processes")
        if num_processes and not device.is_simulated:
            raise ProbeError(f"{num_processes:.0f} processes compute on the GPU")
        return _Before(device, identity, inventory.driver_version or "", check.values)

    def _measure(
        self,
        batch: Mapping[GpuUuid, _Before],
        deadline_s: float,
        stop: threading.Event,
        take: Take,
        operations: Operations,
    ) -> None:
        measured: list[Measured] = []
        until_s = time.monotonic() + deadline_s
        watch = ClockWatch(self.probe, self.wall_ms)
        watched = {uuid for uuid, before in batch.items() if not before.device.is_simulated}
        with watch if watched else nullcontext():
            devices = {uuid: before.device for uuid, before in batch.items()}
            self.bench.run(devices, deadline_s, stop, measured.append, operations)
        diagnosed = {
            uuid: self._diagnosed(before.identity, until_s - time.monotonic(), stop)
            for uuid, before in batch.items()
            if self.diag is not None and not before.device.is_simulated
        }
        try:
            after = self._checks()
        except ProbeError as error:
            for uuid in batch:
                take(uuid, _printable(f"its counters cannot be read afterwards: {error}"))
            return
        for found in measured:
            uuid = GpuUuid(found.gpu)
            is_free = watch.is_free(uuid) if uuid in watched else None
            take(uuid, _result(found, batch[uuid], after.get(uuid), diagnosed.get(uuid), is_free=is_free))

    def _diagnosed(self, gpu: GpuIdentity, left_s: float, stop: threading.Event) -> Diagnosed | str | None:
        if self.diag is None:
            return None
        try:
            return self.diag.run(gpu.index, gpu.serial, max(0.0, left_s), stop)
        except DiagnosingError as error:
            return str(error)

    def _checks(self) -> dict[GpuUuid, GpuCheck]:
        return {check.gpu_uuid: check for check in self.probe.check(self.wall_ms())}


def _result(
    found: Measured,
    before: _Before,
    after: GpuCheck | None,
    diagnosed: Diagnosed | str | None,
    *,
    is_free: bool | None,
) -> Figures | str:
    """Return the figures, or why there are none. ``is_free``: the clocks, read under load; None for simulated GPUs."""
    if found.fault is not None:
        return _printable(found.fault)
    if isinstance(diagnosed, str):
        return _printable(diagnosed)
    if after is None or after.is_lost or after.is_late:
        return "the GPU does not answer after its burn-in"
    is_simulated = before.device.is_simulated
    if is_free is None:  # the load is this host's, so its readings are the same as under load
        is_free = is_throttled(after) is False
    rates = dict(before.device.rates) if is_simulated else found.rates
    covers = coverage_of([name for name, _, _ in found.partial_sums], rates) | (
        {FaultGroup.CLOCKS} if is_free else set()
    )
    return Figures(
        model=_printable(before.identity.model or "")[:128],
        driver=_printable(before.driver)[:128],
        library=found.library,
        partial_sums=tuple(
            ExactSum(name=name, golden=golden, measured=got) for name, golden, got in found.partial_sums
        ),
        bands=found.bands,
        counter_deltas={name: _delta(name, before.values, after.values) for name in COUNTERS},
        rates=rates,
        host_rates=found.rates if is_simulated else {},
        memory_bytes=found.memory_bytes,
        took_s=found.took_s,
        is_simulated=is_simulated,
        vendor_tests=UNSET if diagnosed is None else _vendor_tests(diagnosed),
        covers=tuple(sorted(covers)),
    )


def _vendor_tests(found: Diagnosed) -> VendorTests:
    return VendorTests(
        tool=_printable(found.tool)[:128],
        level=found.level,
        num_passed=found.num_passed,
        failures=tuple(map(_printable, found.failures[:FAILURES_MAX])),
    )


def _printable(words: str) -> str:
    """Return a driver's message in one line, as it may cross the wire."""
    return "".join(each if each.isprintable() else " " for each in words)[:WORDS_MAX].strip() or "it gave no reason"


def _delta(name: str, before: Values, after: Values) -> float | None:
    first, last = value_of(before, name), value_of(after, name)
    return None if first is None or last is None else last - first
