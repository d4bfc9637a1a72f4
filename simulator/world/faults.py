"""Faults and their times: drawn from the seed, counted, and ended at the horizon."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import StopReason
from simulator.planning.cycles import Planner
from simulator.world.hosts import Host
from simulator.world.judging import Judge
from simulator.world.kernel import Kernel
from simulator.world.network import Wire
from simulator.world.picking import RandomPicker
from simulator.world.server import Server
from simulator.world.settings import Settings

_FAULT_STOP_REASONS: Final = (StopReason.MAINTENANCE, StopReason.EVACUATION)
_SEVERITIES: Final = (Severity.CONDEMNING, Severity.DEGRADED, Severity.DEGRADED, Severity.WARNING)
_HALF_AN_HOUR_MS: Final = 1_800_000


class Faults:
    name = "faults"

    def __init__(
        self,
        kernel: Kernel,
        rng: Random,
        settings: Settings,
        server: Server,
        scheduler: Planner | RandomPicker,
        judge: Judge,
        hosts: Mapping[NodeId, Host],
        *wires: Wire,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._kernel, self._rng, self._settings, self._server, self._hosts = kernel, rng, settings, server, hosts
        self._scheduler, self._judge, self._wires = scheduler, judge, wires
        self._is_over = False
        self._kinds: list[Callable[[], None]] = [getattr(self, kind) for kind in settings.fault_weights]
        self._weights = list(settings.fault_weights.values())

    def strike(self) -> None:
        """Cause one fault now, and the next some time later."""
        if self._is_over:
            return
        kind = self._rng.choices(self._kinds, self._weights)[0]
        self.counts[kind.__name__] += 1
        kind()
        self._kernel.after(1 + int(self._rng.expovariate(1 / self._settings.fault_gap_ms)), self.strike)

    def end(self) -> None:
        self._is_over = True
        self._server.crash_rates = {}
        self._server.come_up()
        self._judge.is_calm = self._server.store.is_calm = True
        for gpu in self._server.store.is_admitted:
            self._server.store.is_admitted[gpu] = True
        for wire in self._wires:
            wire.mend()
        for host in self._hosts.values():
            host.crash_rate = 0.0
            for wire in (host.up, host.down, host.wakeup):
                wire.mend()
            host.boot()
            host.start_launcher()

    def _some_host(self) -> Host:
        return self._rng.choice(list(self._hosts.values()))

    def _a_while_ms(self) -> int:
        """Return a time from one millisecond to twice the server's lease, short ones most often."""
        return int(self._settings.timers.server_lease_ms * 2 * self._rng.random() ** 3) + 1

    def kill_launcher(self) -> None:
        self._some_host().kill_launcher(self._a_while_ms())

    def reboot(self) -> None:
        self._some_host().power_off(self._a_while_ms())

    def cut_one_way(self) -> None:
        host = self._some_host()
        wire = host.up if self._rng.random() < 0.5 else host.down
        wire.cut_until_ms = self._kernel.now_ms + self._a_while_ms()

    def cut_both_ways(self) -> None:
        host = self._some_host()
        until_ms = self._kernel.now_ms + self._a_while_ms()
        for wire in (host.up, host.down, host.wakeup):  # one way may come back a little before the other
            wire.cut_until_ms = until_ms + int(self._rng.random() ** 2 * 2 * self._settings.timers.lost_ms)

    def drop_server(self) -> None:
        self._server.go_down(self._a_while_ms())

    def flip_admission(self) -> None:
        """Change whether a GPU is admitted; one in two that are no longer admitted is evacuated."""
        is_admitted = self._server.store.is_admitted
        gpu = self._rng.choice(list(is_admitted))
        is_admitted[gpu] = not is_admitted[gpu]
        attempt_id = self._server.store.holders.get(gpu)
        if not is_admitted[gpu] and attempt_id is not None and self._rng.random() < 0.5:
            self._server.receive(self._server.stop, attempt_id, StopReason.EVACUATION, 0)

    def cancel(self) -> None:
        jobs = list(self._server.store.jobs)
        if jobs:
            self._server.receive(self._server.cancel, self._rng.choice(jobs))

    def stop_attempt(self) -> None:
        live = list(self._server.store.live_of_job.values())
        if live:
            grace_ms = int(self._rng.random() * 4 * self._settings.timers.stop_grace_ms)
            self._server.receive(
                self._server.stop, self._rng.choice(live), self._rng.choice(_FAULT_STOP_REASONS), grace_ms
            )

    def reclaim(self) -> None:
        if self._server.is_up:
            self._scheduler.reclaim()

    def jump_clock(self) -> None:
        """Set a host's time of day forward or back, by up to half an hour."""
        self._some_host().time.jump(int((self._rng.random() - 0.5) * 2 * _HALF_AN_HOUR_MS))

    def storm(self) -> None:
        """Report one fault on one GPU, on some, or on all: now or late, by each host's own time of day."""
        rng = self._rng
        share = rng.choice((0.0, 0.3, 1.0))
        severity, trust = rng.choice(_SEVERITIES), rng.choice((Trust.MEASURED, Trust.MEASURED, Trust.REPORTED))
        name, is_evacuated = f"xid:{rng.randint(1, 170)}", rng.random() < 0.3
        one = rng.choice(list(self._server.store.is_admitted))
        counts_for_ms = int(DEFAULT_POLICY.health.score.weight(severity).counts_for_s * 1000)
        for node_id, gpus in self._server.store.gpus.items():
            host = self._hosts[node_id]
            late_ms = int(rng.random() * _HALF_AN_HOUR_MS) if rng.random() < 0.3 else 0
            told = tuple(
                Finding(
                    detector="xid", version=1, fault_key=name, gpu_uuid=gpu, node_id=node_id, severity=severity,
                    trust=trust, source=Source.NVML, onset_ms=host.time.wall() - late_ms, counts_for_ms=counts_for_ms,
                    summary=name, threatens_correctness=is_evacuated,
                )
                for gpu in gpus
                if gpu == one or rng.random() < share
            )  # fmt: skip
            if told and host.is_on:
                host.up.send(self._server.receive, self._judge.take, told)

    def resize(self) -> None:
        live = list(self._server.store.live_of_job.values())
        if live:
            grace_ms = int(self._rng.random() * 4 * self._settings.timers.stop_grace_ms)
            more = self._server.store.gpus[self._rng.choice(list(self._server.store.gpus))]
            self._server.receive(self._server.resize, self._rng.choice(live), grace_ms, more)
