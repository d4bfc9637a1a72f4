"""A job whose ranks report their pace, for tests of what the server makes of a slow one."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import select

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from control.placement.pending_jobs import nodes_at_fault
from control.policy import policies
from control.training import training
from control.watch import read
from control.watch.stragglers import StragglerRounds
from control.watch.types import VerdictRecord
from muster.db.models import Event
from muster.domain.ids import NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.principals import system_principal
from muster.domain.states import StopReason
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host, make_fleet
from tests.played_host import PlayedHost

STEPS = 64
"""Of a window: the smallest power of two of steps of 0.25 s that takes ten seconds."""


class SlowJob:
    """A running job of two hosts with two ranks each. ``own_s``: own compute of each rank.

    ``measure``: called before each window's reports, such as for what agents report.
    """

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock, **spec: object) -> None:
        self.units, self.clock = units, clock
        self.fleet = make_fleet(units)
        self.hosts = [PlayedHost(units, self.fleet.node_id), PlayedHost(units, enrol_host(units, "beta"))]
        shape = {"nodes": 2, "gpus_per_node": 2, "ranks_per_node": 2}
        self.job_id = self.fleet.submit(shape=shape, restart={"max_restarts": 9}, **spec)
        self.clock.advance(3600)
        self.own_s = dict.fromkeys(range(4), 0.2)
        self.more: dict[int, dict[str, Any]] = {}
        self.step = 0
        self.measure: Callable[[], None] = lambda: None
        self.rounds = StragglerRounds(units, system_principal("watch"))
        self.run(self.hosts)

    def run(self, hosts: Sequence[PlayedHost]) -> None:
        """Start the job's next attempt on some of these hosts."""
        for host in hosts:
            host.beat()
        self.fleet.reconcile()
        self.fleet.cycle()
        view = self.fleet.attempts(self.job_id)[-1]
        self.attempt = view.attempt
        known = {host.node_id: host for host in hosts}
        self.by_rank = [known[part.part.node_id] for part in sorted(view.hosts, key=lambda each: each.part.node_rank)]
        for host in self.by_rank:
            assert host.claim(self.attempt.id, self.attempt.fence).granted
            host.report(self.attempt.id, self.attempt.fence, "started")
        self.offsets = {host.node_id: 0 for host in self.by_rank}

    def send(self, node_rank: int, *lines: tuple[int, dict[str, Any]]) -> None:
        host = self.by_rank[node_rank]
        offset = self.offsets[host.node_id]
        sent = tuple(TrainLine(at_ms=to_ms(self.clock.now), rank=rank, message=message) for rank, message in lines)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION, fence=self.attempt.fence, offset=offset, next_offset=offset + 9, lines=sent
        )
        self.offsets[host.node_id] = offset + 9
        with self.units.begin(host.principal, training.RECORD, quiet=True) as unit:
            training.take(unit, self.attempt.id, batch)

    def train(self, num_windows: int) -> list[VerdictRecord]:
        """Train so many windows, judge after each, and return the verdicts."""
        for _ in range(num_windows):
            self.step += STEPS
            self.clock.advance(16)
            self.measure()
            for node_rank in range(2):
                ranks = range(2 * node_rank, 2 * node_rank + 2)
                self.send(node_rank, *((rank, self.pace(rank)) for rank in ranks))
                self.by_rank[node_rank].beat()
            self.rounds.once()
        return self.verdicts()

    def pace(self, rank: int) -> dict[str, Any]:
        own_s = self.own_s[rank]
        parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "other", "checkpoint"), 0.01)
        figures = {"own_s": own_s, "wait_s": max(self.own_s.values()) - own_s + 0.01, "own_steps": STEPS}
        spent = {f"{part}_s": seconds for part, seconds in parts.items()}
        more = self.more.get(rank, {})
        return {"type": "pace", "step": self.step, "num_steps": STEPS, "collective_s": 0.0, **spent, **figures, **more}

    def save(self) -> None:
        """Commit a checkpoint of the newest step."""
        generation = f"step-{self.step:08d}/gen-{self.attempt.fence}"
        message = {"type": "checkpoint", "step": self.step, "generation": generation, "bytes": 1, "seconds": 1.0}
        self.send(0, (0, message | {"status": "committed", "at_unix_ms": to_ms(self.clock.now)}))

    def verdicts(self) -> list[VerdictRecord]:
        with self.units.begin(self.fleet.tenant, read.READ, quiet=True) as unit:
            return list(read.list_verdicts(unit, read.VerdictFilter(job_id=self.job_id), Part(10)))

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.units.read() as session:
            return [event.payload for event in session.scalars(select(Event).where(Event.kind == kind))]

    def stop_reason(self) -> StopReason | None:
        return self.fleet.attempts(self.job_id)[-1].attempt.stop_reason

    def avoided(self) -> frozenset[NodeId]:
        with self.units.read() as session:
            return nodes_at_fault(session, [self.job_id]).get(self.job_id, frozenset())


def set_rules(units: UnitOfWorkFactory, **changed: object) -> None:
    rules = DEFAULT_POLICY.watch.stragglers.model_copy(update=changed)
    watch = DEFAULT_POLICY.watch.model_copy(update={"stragglers": rules})
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, DEFAULT_POLICY.model_copy(update={"watch": watch}), reason="test")
