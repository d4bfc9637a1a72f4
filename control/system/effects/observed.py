"""Observations before and after a tried change: the planner's input, the capacity, and the jobs that it touches."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.placement.pending_jobs import waiting_after
from control.placement.preflight import without_preflight
from control.placement.scheduling import question
from control.system.effects.follow_ons import Event, Stop, follow
from control.system.effects.types import JobFacts
from health.standing.admission import AdmissionFacts, Refusal, refusals_of
from muster.db.models import Job, Node, Tenant
from muster.domain.exit.causes import GOES_ON_THERE
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.states import TERMINAL_JOB_STATES
from muster.domain.times import to_ms
from scheduler.explain.departures import Departure
from scheduler.model import Question

_SUBJECTS_OF_CAPACITY: Final = frozenset({"breaker", "gpu", "node", "policy"})


@dataclass(frozen=True, slots=True)
class Capacity:
    """GPUs that a tier admits, and how many of them run no job."""

    admitted: int
    idle: int


@dataclass(frozen=True, slots=True)
class Before:
    question: Question
    capacity: Mapping[str, Capacity]


@dataclass(frozen=True, slots=True)
class After:
    """``departures``: the jobs that leave and continue."""

    now: datetime
    stops: Sequence[Stop]
    question: Question
    capacity: Mapping[str, Capacity]
    jobs: Mapping[JobId, JobFacts]
    departures: Sequence[Departure]


def concerns_placement(unit: UnitOfWork, events: Sequence[Event]) -> bool:
    """Return whether the unit may change which job runs where, so that the fleet has to be read."""
    return unit.concerns_placement or any(event.get("subject_type") in _SUBJECTS_OF_CAPACITY for event in events)


def observe_after(unit: UnitOfWork, events: Sequence[Event], leaving: Collection[AttemptId]) -> After:
    """Do the follow-ons of the change and read what is then; the unit is rolled back afterwards."""
    stops = follow(unit, events, leaving)
    session = unit.session
    cycle = question_at(session, unit.now)
    touched = {stop.job_id for stop in stops} | {
        JobId(event["subject_id"]) for event in unit.events if event.get("subject_type") == "job"
    }
    rows = session.scalars(select(Job).where(Job.id.in_(touched)).order_by(Job.id)).all()
    facts = facts_of(session, rows)
    return After(
        now=unit.now,
        stops=stops,
        question=cycle,
        capacity=capacity_of(cycle),
        jobs=facts,
        departures=_departures(session, unit.now, stops, facts, cycle),
    )


def observe_before(units: UnitOfWorkFactory, now: datetime) -> Before:
    """Return the state now, where it could not be read in the snapshot of the tried change."""
    with units.read() as session:
        return before_in(session, now)


def before_in(session: Session, now: datetime) -> Before:
    cycle = question_at(session, now)
    return Before(cycle, capacity_of(cycle))


def question_at(session: Session, now: datetime) -> Question:
    found = question(session, now, without_preflight(session, now), is_what_if=True)
    if found is None:
        raise AssertionError("a what-if always has a question")
    return found


def capacity_of(cycle: Question) -> dict[str, Capacity]:
    """Return the capacity of each tier, the highest priority first."""
    kinds: dict[int, tuple[AdmissionFacts, int]] = {}
    for gpu in cycle.gpus:
        facts, count = kinds.get(id(gpu.facts), (gpu.facts, 0))
        kinds[id(gpu.facts)] = (facts, count + 1)
    found = {}
    for name, tier in sorted(cycle.policy.tiers.items(), key=lambda item: (-item[1].priority, item[0])):
        admitted = idle = 0
        for facts, count in kinds.values():
            refusals = refusals_of(facts, tier)
            admitted += count if set(refusals) <= {Refusal.ASSIGNED} else 0
            idle += 0 if refusals else count
        found[name] = Capacity(admitted, idle)
    return found


def facts_of(session: Session, rows: Collection[Job]) -> dict[JobId, JobFacts]:
    tenants = select(Tenant.id, Tenant.name).where(Tenant.id.in_({row.tenant_id for row in rows}))
    names = {tenant_id: name for tenant_id, name in session.execute(tenants)}  # noqa: C416  # rows are no pairs to mypy
    return {
        row.id: JobFacts(
            row.id,
            row.name,
            row.tenant_id,
            names[row.tenant_id],
            row.tier,
            row.state,
            ends=row.state in TERMINAL_JOB_STATES or row.cancel_requested_at is not None,
        )
        for row in rows
    }


def node_names_of(session: Session, node_ids: Collection[NodeId]) -> dict[NodeId, str]:
    rows = session.execute(select(Node.id, Node.name).where(Node.id.in_(node_ids)))
    return {node_id: name for node_id, name in rows}  # noqa: C416  # rows are no pairs to the type checker


def departures_of(
    session: Session, now: datetime, leaving: Mapping[JobId, tuple[AttemptId, bool]], cycle: Question
) -> list[Departure]:
    """Return the departures of these jobs. ``leaving``: the attempt, and whether the job keeps its good GPUs."""
    rows = session.scalars(select(Job).where(Job.id.in_(leaving)).order_by(Job.id)).all()
    keeping = {job_id for job_id, (_, keeps) in leaving.items() if keeps}
    waiting = waiting_after(session, rows, keeping, to_ms(now), cycle.workload.holds)
    return [Departure(leaving[one.job_id][0], one, keeps_its_gpus=one.job_id in keeping) for one in waiting]


def _departures(
    session: Session,
    now: datetime,
    stops: Sequence[Stop],
    facts: Mapping[JobId, JobFacts],
    cycle: Question,
) -> list[Departure]:
    """Return the departures of all that were asked to leave; of jobs, unless they wait in the queue already."""
    queued = {job.job_id for job in cycle.queue}
    leaving, ended = {}, []
    for stop in stops:
        if facts[stop.job_id].ends:
            ended.append(Departure(stop.attempt_id, None))
        elif stop.job_id not in queued:
            leaving[stop.job_id] = (stop.attempt_id, stop.reason in GOES_ON_THERE)
    return [*departures_of(session, now, leaving, cycle), *ended]
