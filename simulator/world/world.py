"""One seed's world: built, driven through its faults, then left without faults until everything has to be idle."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.states import IllegalTransitionError
from simulator.planning.cycles import Planner
from simulator.planning.rules import draw_rules, shaped
from simulator.world.books import Books
from simulator.world.faults import Faults
from simulator.world.hosts import Host
from simulator.world.invariants import Inspector
from simulator.world.judging import Judge
from simulator.world.kernel import Kernel, text_of
from simulator.world.network import Wire
from simulator.world.node_holds import NodeFaults
from simulator.world.picking import RandomPicker
from simulator.world.placing import Placer
from simulator.world.reclaiming import Reclaims
from simulator.world.rows import JobRow
from simulator.world.server import Server
from simulator.world.settings import MAX_WALL_BEATS, Settings, draw_settings
from simulator.world.store import Store
from simulator.world.truth import Truth, ViolationError, require
from simulator.world.wiring import TRUE_WIRING, Wiring

REPLAY: Final = "python -m simulator --trace {seed}{bug}"
_ERRORS: Final[dict[type[Exception], str]] = {IllegalTransitionError: "I21"}
"""Errors by which the core itself refuses a step, with the invariant that it keeps so."""


@dataclass(frozen=True, slots=True)
class History:
    """The result of one seed. ``violation`` is None, or its message with the last events before it.

    ``num_checks``: how many inspections checked all invariants. ``broken``: the invariant's name, or that of the error
    if the world itself could not continue. ``decision_counts``: the planner's decisions, by kind; empty without the
    planner.
    """

    seed: int
    num_events: int
    num_checks: int = 0
    violation: str | None = None
    broken: str | None = None
    num_jobs: int = 0
    num_attempts: int = 0
    num_commits: int = 0
    fault_counts: tuple[tuple[str, int], ...] = ()
    crash_counts: tuple[tuple[str, int], ...] = ()
    decision_counts: tuple[tuple[str, int], ...] = ()


class Client:
    """A tenant that submits each job under one key, repeatedly until the answer comes."""

    name = "client"

    def __init__(self, kernel: Kernel, rng: Random, settings: Settings, server: Server) -> None:
        self.up, self.down = Wire(kernel, rng, settings), Wire(kernel, rng, settings)
        self.accepted: dict[str, JobId] = {}
        self._kernel, self._rng, self._settings, self._server = kernel, rng, settings, server
        self._num_rows = 0

    def submit(self, key: str) -> None:
        if key in self.accepted:
            return
        beat_ms = self._settings.timers.heartbeat_ms
        self._num_rows += 1
        wanted = Random(key + str(self._settings.num_hosts) + str(self._settings.horizon_ms))
        nodes = min(wanted.choice((1, 1, 2, 3)), self._settings.num_hosts)
        row = JobRow(
            job_id=JobId(f"job{self._num_rows}"),
            key=key,
            nodes=nodes,
            gpus_per_node=min(wanted.choice((1, 1, 2, 4)), self._settings.gpus_per_host),
            rule=wanted.choice((NodeLossRule.WAIT, NodeLossRule.FENCED)),
            wall_time_ms=beat_ms * wanted.randint(30, MAX_WALL_BEATS),
            stop_grace_ms=int(self._settings.timers.stop_grace_ms * wanted.random() * 2),
            min_nodes=wanted.randint(1, nodes),
            tenant=wanted.choice(("acme", "rival")),
            notice_ms=wanted.choice((None, 0, beat_ms * wanted.randint(1, 12))),
            min_run_ms=beat_ms * wanted.choice((0, 0, wanted.randint(1, 20))),
        )
        if self._server.store.rules.is_planned:
            row = shaped(row, self._server.store.rules, self._settings, wanted)
        self.up.send(self._server.receive, self._server.submit, row, wanted.randint(0, 3), self.answer)
        self._kernel.after(beat_ms, self.submit, key)

    def answer(self, row: JobRow) -> None:
        """Send the server's 2xx for this row's key."""
        self.down.send(self.receive, row.key, self._server.store.job_of_key.get(row.key, row.job_id))

    def receive(self, key: str, job_id: JobId) -> None:
        known = self.accepted.setdefault(key, job_id)
        require(known == job_id, "I12", f"the key {key} made {known} and {job_id}")
        require(job_id in self._server.store.jobs, "I12", f"{job_id} was accepted and is lost")


class World:
    """A world. ``is_planned``: whether ``scheduler.planner`` decides; None: in one world of four.

    ``has_node_faults``: nodes may have faults of their own, which hold them.
    """

    server_type: ClassVar[type[Server]] = Server
    is_planned: ClassVar[bool | None] = None
    has_node_faults: ClassVar[bool] = True

    def __init__(self, seed: int, wiring: Wiring) -> None:
        self.kernel = Kernel()
        self.rng = rng = Random(seed)
        self.settings = settings = self.draw_settings(rng)
        nodes = [NodeId(f"node{number}") for number in range(settings.num_hosts)]
        gpus = {node: tuple(GpuUuid(f"{node}-gpu{slot}") for slot in range(settings.gpus_per_host)) for node in nodes}
        is_admitted = {gpu: True for part in gpus.values() for gpu in part}
        rules = draw_rules(Random(f"rules of {seed}"), settings, nodes, is_planned=self.is_planned)
        ceiling_gpus = 1 << 30 if rules.is_planned else settings.ceiling_gpus
        self.store = Store(Truth(clock=self._now_ms), gpus, is_admitted, ceiling_gpus, rules=rules, clock=self._now_ms)
        self.store.open_on.update({node: {} for node in nodes})
        self.server = self.server_type(self.kernel, rng, settings, wiring, self.store)
        placer = Placer(self.kernel, settings, wiring, self.server)
        reclaims = Reclaims(self.kernel, wiring, self.server, placer)
        scheduler_type: type[Planner | RandomPicker] = Planner if rules.is_planned else RandomPicker
        self.scheduler = scheduler_type(self.kernel, rng, settings, wiring, self.server, placer, reclaims)
        self.judge = Judge(self.kernel, rng, settings, wiring, self.server, Random(f"burn-ins of {seed}"))
        self.client = Client(self.kernel, rng, settings, self.server)
        self.hosts = {node: Host(node, self.kernel, rng, settings, wiring, self.server) for node in nodes}
        self.server.hosts = self.hosts
        self.faults = Faults(
            self.kernel,
            rng,
            settings,
            self.server,
            self.scheduler,
            self.judge,
            self.hosts,
            self.client.up,
            self.client.down,
        )
        self.node_faults = NodeFaults(
            self.kernel, Random(f"nodes of {seed}"), settings, self.server, self.judge.node_holds, self.hosts
        )
        self.books = Books(self.store, Random(f"books of {seed}"), settings.timers.lost_ms, wiring)
        self.inspector = Inspector(
            self.kernel, self.store, self.judge, self.client.accepted, settings.timers, self.scheduler, self.books
        )
        self.kernel.inspector = self.inspector.check
        self._is_calm = False

    def _now_ms(self) -> int:
        return self.kernel.now_ms

    def draw_settings(self, rng: Random) -> Settings:
        return draw_settings(rng)

    def begin(self) -> None:
        """Schedule everything that happens by itself; nothing has happened yet."""
        settings, after = self.settings, self.kernel.after
        for host in self.hosts.values():
            after(int(self.rng.random() * settings.timers.heartbeat_ms), host.boot)
        for number in range(settings.num_jobs):
            after(int(self.rng.random() * settings.horizon_ms * 0.7), self.client.submit, f"key{number}")
        self._every(settings.reconcile_ms, lambda: self.server.receive(self.server.reconcile))
        self._every(settings.reconcile_ms, self._select)
        self.scheduler.begin()
        self._every(settings.reconcile_ms, lambda: self.server.receive(self.judge.keep_up))
        after(settings.fault_gap_ms, self.faults.strike)
        if self.has_node_faults:
            self.node_faults.begin()
        after(settings.horizon_ms, self._calm_down)

    def run(self) -> None:
        settings = self.settings
        self.begin()
        self.kernel.run(settings.horizon_ms + settings.settle_ms)
        self.inspector.check()
        self.books.finish()
        require(self._is_at_rest(), "liveness", self._unrest())

    def _every(self, period_ms: int, action: Callable[[], None]) -> None:
        def again() -> None:
            self.kernel.after(period_ms, again)
            action()

        again()

    def _select(self) -> None:
        if self.server.is_up:
            self.scheduler.select()

    def _calm_down(self) -> None:
        """End the faults: from here on everything has to come to its end."""
        self._is_calm = True
        self.faults.end()
        self.node_faults.end()
        self._every(self.settings.reconcile_ms, self._stop_at_rest)

    def _stop_at_rest(self) -> None:
        if self._is_at_rest():
            self.kernel.stop()

    def _is_at_rest(self) -> bool:
        return (
            self._is_calm
            and len(self.client.accepted) == self.settings.num_jobs
            and self.store.is_at_rest()
            and self.judge.is_at_rest()
            and not any(host.ledger.records for host in self.hosts.values())
        )

    def _unrest(self) -> str:
        jobs = [f"{job.job_id} {job.state} ({job.reason})" for job in self.store.jobs.values()]
        attempts = [str(self.store.attempts[attempt_id]) for attempt_id in self.store.open_attempts]
        records = [f"{host.name}: {record}" for host in self.hosts.values() for record in host.ledger.records.values()]
        return "not idle: " + "\n  ".join(
            (
                *jobs,
                *attempts,
                *records,
                f"held {self.store.hold_of}",
                f"out {sorted(self.store.is_out)}",
                f"accepted {sorted(self.client.accepted)}",
            )
        )


def run_seed(
    seed: int, wiring: Wiring = TRUE_WIRING, bug: str | None = None, world_type: type[World] = World
) -> History:
    """Return one history; the same seed and wiring give the same, event by event."""
    world = world_type(seed, wiring)
    violation = broken = None
    try:
        world.run()
    except (ViolationError, IllegalTransitionError, AssertionError, KeyError) as fault:
        trail = "\n".join(text_of(entry) for entry in world.kernel.trail)
        command = REPLAY.format(seed=seed, bug=f" --bug {bug}" if bug else "")
        what = f"{type(fault).__name__}: {fault}"
        broken = (
            fault.invariant if isinstance(fault, ViolationError) else _ERRORS.get(type(fault), type(fault).__name__)
        )
        violation = f"{trail}\nseed {seed} at {world.kernel.now_ms} ms: {what}\nreplay: {command}"
    return History(
        seed=seed,
        num_events=world.kernel.num_events,
        num_checks=world.inspector.num_checks,
        violation=violation,
        broken=broken,
        num_jobs=len(world.store.jobs),
        num_attempts=len(world.store.attempts),
        num_commits=world.store.truth.num_commits,
        fault_counts=tuple(sorted(world.faults.counts.items())),
        crash_counts=tuple(sorted(world.server.crashes.items())),
        decision_counts=tuple(sorted(world.scheduler.num_decided.items())),
    )
