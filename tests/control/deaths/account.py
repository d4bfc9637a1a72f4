"""What a timeline leaves behind, without ids and times: two timelines that went alike have the same account."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    AttemptHost,
    AuditEntry,
    Cordon,
    Event,
    GpuHold,
    Job,
    Node,
    OutboxMessage,
    PlacementPreflight,
    Reclaim,
    StopRequest,
)

Account = dict[str, list[str]]
_REPORTED_OF_REPEATS: Final = ("attempt.host_claim_repeated",)
"""That a request came again is a fact of its own."""


def account_of(session: Session) -> Account:
    """Each kind of row with its lines in order; a line that occurs twice stands there twice."""
    names = _names(session)
    return {
        "jobs": _jobs(session),
        "attempts": _attempts(session, names),
        "gpus": _gpus(session, names),
        "reclaims": _reclaims(session, names),
        "holds": sorted(f"{hold.gpu_uuid} for {names[hold.job_id]}" for hold in session.scalars(select(GpuHold))),
        "looks": sorted(f"{names[look.job_id]} {look.state}" for look in session.scalars(select(PlacementPreflight))),
        "cordons": sorted(f"{one.reason_code} {names[one.node_id or '']}" for one in session.scalars(select(Cordon))),
        "stops": _stops(session, names),
        "events": sorted(
            f"{event.kind} {names.get(event.subject_id, event.subject_type)}"
            for event in session.scalars(select(Event).where(Event.kind.not_in(_REPORTED_OF_REPEATS)))
        ),
        "audit": sorted(
            f"{entry.action} {names.get(entry.subject_id, entry.subject_type)}"
            for entry in session.scalars(select(AuditEntry))
        ),
        "outbox": sorted(_message(message, names) for message in session.scalars(select(OutboxMessage))),
    }


def _names(session: Session) -> dict[str, str]:
    """Of jobs, attempts, allocations and nodes, by id."""
    names: dict[str, str] = {"": ""}
    names |= {node.id: node.name for node in session.scalars(select(Node))}
    names |= {job.id: job.name for job in session.scalars(select(Job))}
    for attempt in session.scalars(select(Attempt)):
        names[attempt.id] = f"{names[attempt.job_id]}#{attempt.number}"
    for allocation in session.scalars(select(Allocation)):
        names[allocation.id] = f"GPUs of {names[allocation.attempt_id]}"
    return names


def _jobs(session: Session) -> list[str]:
    return sorted(
        f"{job.name} {job.state} restarts {job.restarts_used} failures {job.launch_failures} "
        f"wanted {job.wanted_nodes} tried {job.next_try_at is not None} cancelled {job.cancel_requested_at is not None}"
        for job in session.scalars(select(Job))
    )


def _attempts(session: Session, names: Mapping[str, str]) -> list[str]:
    hosts: dict[str, list[str]] = {}
    for part in session.scalars(select(AttemptHost).order_by(AttemptHost.node_rank)):
        hosts.setdefault(part.attempt_id, []).append(f"{names[part.node_id]} {part.state}")
    return sorted(
        f"{names[one.id]} {one.state} {one.cause} stopped {one.stop_reason} on {hosts[one.id]}"
        for one in session.scalars(select(Attempt))
    )


def _gpus(session: Session, names: Mapping[str, str]) -> list[str]:
    states = {one.id: one.state for one in session.scalars(select(Allocation))}
    return sorted(
        f"{names[gpu.allocation_id]} {states[gpu.allocation_id]}: {gpu.gpu_uuid} {gpu.state}"
        for gpu in session.scalars(select(AllocationGpu))
    )


def _reclaims(session: Session, names: Mapping[str, str]) -> list[str]:
    return sorted(
        f"{names[one.victim_attempt_id]} for {names[one.beneficiary_job_id]}: {one.state} {one.outcome}, "
        f"{one.num_gpus} GPUs within {(one.deadline_at - one.notified_at).total_seconds()} s, "
        f"notified {one.delivered_at is not None}, hold ended: {one.hold_ended_why}, keeps {one.keeps}"
        for one in session.scalars(select(Reclaim))
    )


def _stops(session: Session, names: Mapping[str, str]) -> list[str]:
    """With the deadline, where a reclaim set it."""
    promised = {one.victim_attempt_id: one.deadline_at for one in session.scalars(select(Reclaim))}
    return sorted(
        f"{names[stop.attempt_id]} {stop.reason} at its deadline: {promised.get(stop.attempt_id) == stop.deadline_at}"
        for stop in session.scalars(select(StopRequest))
    )


def _message(message: OutboxMessage, names: Mapping[str, str]) -> str:
    said = str(message.payload)
    for row_id in names.keys() - {""}:
        said = said.replace(row_id, names[row_id])
    return f"{message.topic} {names.get(message.key, message.key)} {said}"


def differences(one: Account, other: Account) -> list[str]:
    """What the second has more or less often than the first, kind by kind."""
    found = []
    for kind in one.keys() | other.keys():
        before, after = Counter(one.get(kind, [])), Counter(other.get(kind, []))
        found += [f"{kind}: lacks {line}" for line in (before - after).elements()]
        found += [f"{kind}: has in addition {line}" for line in (after - before).elements()]
    return sorted(found)
