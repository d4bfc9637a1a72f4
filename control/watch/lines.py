"""The timeline of the lines about faults of a job, with what was measured on its hosts meanwhile: to read."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import and_, or_, select

from control.core.unit_of_work import UnitOfWork
from control.core.visibility import may_see
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    AttemptHost,
    AttemptTransport,
    EvidenceRow,
    Job,
    LineFindingRow,
    Node,
    StoredSignal,
)
from muster.domain.errors import NotFoundError
from muster.domain.evidence.findings import EventKind, Severity, Trust
from muster.domain.exit.fault_lines import Role
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId
from muster.domain.principals import Permission
from muster.domain.times import to_ms, to_time
from watch.lines.port_growth import RETRY_COUNTERS, Growth, PortShare, Use, attributed
from watch.lines.timeline import HostLine, Measured, Timeline, timeline_of

MOST_LINES: Final = 2_000
MOST_EVIDENCE: Final = 100
MOST_SIGNALS: Final = 2_000
MOST_PORTS: Final = 10
MOST_HOSTS: Final = 256
PORTS_SINCE: Final = timedelta(hours=24)
"""Growth of ports is read over the last day of the attempt alone."""
_AROUND: Final = timedelta(minutes=10)
_LONGEST: Final = 300


@dataclass(frozen=True, slots=True)
class HostTransport:
    """What NCCL chose on one host. ``warning``: RDMA was expected and is not used."""

    node: str
    transport: str
    cards: Sequence[str]
    warning: str | None


@dataclass(frozen=True, slots=True)
class FaultLines:
    """What is known from the lines of one attempt. ``timeline`` is None while no line about a fault was printed."""

    attempt_id: AttemptId
    number: int
    timeline: Timeline | None
    transports: Sequence[HostTransport]
    ports: Sequence[PortShare]

    @property
    def transport_words(self) -> list[str]:
        """Return the transports as text, hosts that chose alike together."""
        hosts: dict[str, list[str]] = {}
        for each in self.transports:
            cards = f" ({', '.join(each.cards)})" if each.cards else ""
            hosts.setdefault(f"{each.transport}{cards}", []).append(each.node)
        return [f"{words} on {', '.join(nodes[:4])}{_others(len(nodes) - 4)}" for words, nodes in sorted(hosts.items())]

    @property
    def warning(self) -> str | None:
        return next((each.warning for each in self.transports if each.warning is not None), None)


def _others(number: int) -> str:
    return f" and {number} {'other' if number == 1 else 'others'}" if number > 0 else ""


def fault_lines(unit: UnitOfWork, job_id: JobId, *, number: int | None = None) -> FaultLines | None:
    """Return the lines of an attempt, by default of the newest; None for a job without one.

    Raises:
        NotFoundError: there is no such job or attempt, or the caller may not see it.
    """
    unit.principal.require(Permission.LOG_READ)  # lines are a tenant's as its output is
    tenant_id = unit.session.scalar(select(Job.tenant_id).where(Job.id == job_id))
    if tenant_id is None or not may_see(unit.principal, tenant_id):
        raise NotFoundError
    query = select(Attempt).where(Attempt.job_id == job_id)
    if number is not None:
        query = query.where(Attempt.number == number)
    attempt = unit.session.scalar(query.order_by(Attempt.number.desc()).limit(1))
    if attempt is None:
        if number is not None:
            raise NotFoundError("the job has no such attempt")
        return None
    nodes = _nodes(unit, attempt)
    lines = _lines(unit, attempt, nodes)
    names = {node_id: name for node_id, (name, _) in nodes.items()}
    measured = _measured(unit, attempt, names) if lines else []
    addresses = {address: name for name, address in nodes.values() if address}
    return FaultLines(
        attempt.id,
        attempt.number,
        timeline_of(lines, measured, {**addresses, **{name: name for name in names.values()}}),
        _transports(unit, attempt, names),
        _ports(unit, attempt, names),
    )


def _nodes(unit: UnitOfWork, attempt: Attempt) -> dict[NodeId, tuple[str, str | None]]:
    query = (
        select(Node.id, Node.name, Node.address)
        .join(AttemptHost, AttemptHost.node_id == Node.id)
        .where(AttemptHost.attempt_id == attempt.id)
        .order_by(AttemptHost.node_rank)
        .limit(MOST_HOSTS)
    )
    return {row.id: (row.name, row.address) for row in unit.session.execute(query)}


def _lines(unit: UnitOfWork, attempt: Attempt, nodes: dict[NodeId, tuple[str, str | None]]) -> list[HostLine]:
    """Return the stored lines, roots first, so that no number of cascades hides one; then the earliest."""
    query = select(LineFindingRow).where(LineFindingRow.attempt_id == attempt.id)
    in_order = LineFindingRow.role != Role.ROOT, LineFindingRow.first_at, LineFindingRow.key
    rows = unit.session.scalars(query.order_by(*in_order).limit(MOST_LINES))
    return [
        HostLine(
            node=nodes[row.node_id][0],
            pattern=row.pattern,
            role=row.role,
            text=row.text,
            rank=row.rank,
            peer=row.peer,
            port=row.port,
            hca=row.hca,
            count=row.count,
            first_ms=to_ms(row.first_at),
            last_ms=to_ms(row.last_at),
        )
        for row in rows
        if row.node_id in nodes
    ]


def _measured(unit: UnitOfWork, attempt: Attempt, names: dict[NodeId, str]) -> list[Measured]:
    """Return measured faults of the attempt's hosts, and of its own GPUs alone, while it ran."""
    until = (attempt.ended_at or unit.now) + _AROUND
    query = (
        select(EvidenceRow)
        .where(
            or_(
                and_(EvidenceRow.gpu_uuid.is_(None), EvidenceRow.node_id.in_(names)),
                EvidenceRow.gpu_uuid.in_(_gpus(unit, attempt)),
            ),
            EvidenceRow.last_seen_at >= attempt.placed_at - _AROUND,
            EvidenceRow.onset_at.between(attempt.placed_at - _AROUND, until),
            EvidenceRow.trust == Trust.MEASURED,
            EvidenceRow.severity >= int(Severity.WARNING),
            EvidenceRow.dismissed_at.is_(None),
        )
        .order_by(EvidenceRow.onset_at, EvidenceRow.id)
        .limit(MOST_EVIDENCE)
    )
    return [
        Measured(
            node=names[row.node_id],
            rule=row.detector,
            summary=row.summary[:_LONGEST],
            at_ms=to_ms(row.onset_at),
            gpu=row.gpu_uuid or "",
            port=row.fault_key.partition(":")[2] if row.detector.startswith("port") else "",
        )
        for row in unit.session.scalars(query)
        if row.node_id in names
    ]


def _gpus(unit: UnitOfWork, attempt: Attempt) -> Sequence[GpuUuid]:
    query = select(AllocationGpu.gpu_uuid).join(Allocation, Allocation.id == AllocationGpu.allocation_id)
    return unit.session.scalars(query.where(Allocation.attempt_id == attempt.id)).all()


def _transports(unit: UnitOfWork, attempt: Attempt, names: dict[NodeId, str]) -> list[HostTransport]:
    query = select(AttemptTransport).where(AttemptTransport.attempt_id == attempt.id).limit(MOST_HOSTS)
    found = [
        HostTransport(names[row.node_id], row.transport, row.cards, row.warning)
        for row in unit.session.scalars(query)
        if row.node_id in names
    ]
    return sorted(found, key=lambda each: each.node)


def _ports(unit: UnitOfWork, attempt: Attempt, names: dict[NodeId, str]) -> list[PortShare]:
    """Return the growth of retries and timeouts of the ports that this attempt used."""
    until = attempt.ended_at or unit.now
    since = max(attempt.placed_at, until - PORTS_SINCE)
    query = select(StoredSignal).where(
        StoredSignal.node_id.in_(names),
        StoredSignal.kind == EventKind.PORT_RATES,
        StoredSignal.received_at >= since,
        StoredSignal.at.between(since, until),
    )
    growths: list[Growth] = []
    for row in unit.session.scalars(query.order_by(StoredSignal.at.desc()).limit(MOST_SIGNALS)):
        at_ms, window_s = to_ms(row.at), float(row.values.get("window_s", 0.0))
        for counter in RETRY_COUNTERS:
            if (rise := float(row.values.get(counter, 0.0))) > 0:
                from_ms = at_ms - round(window_s * 1_000)
                growths.append(Growth(names[row.node_id], row.text, counter, rise, from_ms, at_ms))
    if not growths:
        return []
    shares = attributed(growths, _uses(unit, names, since_ms=to_ms(since), until_ms=to_ms(until)))
    return [each for each in shares if each.attempt_id == attempt.id][:MOST_PORTS]


def _uses(unit: UnitOfWork, names: dict[NodeId, str], *, since_ms: int, until_ms: int) -> list[Use]:
    """Return the attempts on these hosts in that time, with the network cards that NCCL stated for each."""
    query = (
        select(Attempt.id, AttemptHost.node_id, Attempt.placed_at, Attempt.ended_at, AttemptTransport.cards)
        .join(AttemptHost, AttemptHost.attempt_id == Attempt.id)
        .outerjoin(
            AttemptTransport,
            and_(AttemptTransport.attempt_id == Attempt.id, AttemptTransport.node_id == AttemptHost.node_id),
        )
        .where(
            AttemptHost.node_id.in_(names),
            Attempt.placed_at <= to_time(until_ms),
            or_(Attempt.ended_at.is_(None), Attempt.ended_at >= to_time(since_ms)),
        )
        .order_by(Attempt.placed_at.desc())
        .limit(MOST_LINES)
    )
    return [
        Use(
            row.id,
            names[row.node_id],
            tuple(row.cards or ()),
            to_ms(row.placed_at),
            until_ms if row.ended_at is None else to_ms(row.ended_at),
        )
        for row in unit.session.execute(query)
    ]
