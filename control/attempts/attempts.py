"""Events on attempts: load under locks, step the machines, store, release GPUs. Each change of a job's state is here.

Locking order (see ARCHITECTURE.md): the job's row, then its attempt, then the attempt's hosts, then allocation and
GPUs. The holder of the job's row has all of them to itself.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from sqlalchemy import Select, bindparam, select

from control.attempts import ends, hangs, reruns, resume_holds, suspects
from control.attempts.mapping import (
    attempt_lifecycle,
    grace_ms,
    job_lifecycle,
    job_request,
    show_bundle_awaited,
    store_attempt,
    store_job,
    timers_of,
)
from control.attempts.open_preflights import end_open_preflight, open_preflight
from control.attempts.reclaim_outcomes import settle
from control.attempts.stragglers import settle_stragglers
from control.checkpoints import checkpoints
from control.content.uses import note_awaited
from control.core.unit_of_work import SCHEDULER_CHANNEL, WAKEUP_TOPIC, UnitOfWork
from control.fleet import cordons
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    AttemptHost,
    Cordon,
    Job,
    StopRequest,
)
from muster.domain.errors import NotFoundError
from muster.domain.exit.causes import CAUSE_RULES, MATTERS_TWICE, Budget
from muster.domain.ids import AttemptId, JobId, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle import job as jobs
from muster.domain.lifecycle.model import AttemptLifecycle, Timers
from muster.domain.policy.document import Policy
from muster.domain.states import AllocationState, AttemptState, Cause, HostPartState, JobState, StopReason
from muster.domain.times import to_ms
from muster.identity import new_id

OUTBOX_CHANNEL: Final = "muster_outbox"
UNCLEAN: Final = "unclean"
"""Reason code of a cordon: programs of an ended attempt may still run on the node."""
_COUNTED_IN_A_ROW: Final = (Cause.LAUNCH_FAILED, Cause.GPU_FAULT, Cause.NCCL_TIMEOUT)
"""Causes that cost no restart, and for which a job is held where they recur without progress."""


@dataclass(slots=True)
class LoadedAttempt:
    """A job, one of its attempts and that attempt's hosts in node rank order, all locked."""

    job: Job
    attempt: Attempt
    hosts: Sequence[AttemptHost]

    def host(self, node_id: NodeId) -> AttemptHost | None:
        return next((host for host in self.hosts if host.node_id == node_id), None)


def lock_job(unit: UnitOfWork, job_id: JobId) -> Job:
    """Lock the job and return it. Raises ``NotFoundError`` when there is no such job."""
    job = unit.session.scalar(_job_locked(), {"job_id": job_id})
    if job is None:
        raise NotFoundError
    return job


def lock_attempt(unit: UnitOfWork, attempt_id: AttemptId) -> LoadedAttempt:
    """Lock the attempt and return it. Raises ``NotFoundError`` when there is no such attempt."""
    by_id = {"attempt_id": attempt_id}
    job_id = unit.session.scalar(_job_of_attempt(), by_id)
    if job_id is None:
        raise NotFoundError
    job = lock_job(unit, job_id)
    attempt = unit.session.scalars(_attempt_afresh(), by_id).one()
    return LoadedAttempt(job, attempt, unit.session.scalars(_hosts_afresh(), by_id).all())


# Built once: each step asks them. Rows read before the lock may be stale, so they are populated again.


@functools.cache
def _job_locked() -> Select[Job]:
    query = select(Job).where(Job.id == bindparam("job_id")).with_for_update(key_share=True)
    return query.execution_options(populate_existing=True)


@functools.cache
def _job_of_attempt() -> Select[JobId]:
    return select(Attempt.job_id).where(Attempt.id == bindparam("attempt_id"))


@functools.cache
def _attempt_afresh() -> Select[Attempt]:
    query = select(Attempt).where(Attempt.id == bindparam("attempt_id"))
    return query.execution_options(populate_existing=True)


@functools.cache
def _hosts_afresh() -> Select[AttemptHost]:
    query = select(AttemptHost).where(AttemptHost.attempt_id == bindparam("attempt_id"))
    return query.order_by(AttemptHost.node_rank).execution_options(populate_existing=True)


def live_attempt_of(unit: UnitOfWork, job: Job) -> LoadedAttempt | None:
    attempt_id = unit.session.scalar(
        select(Attempt.id).where(Attempt.job_id == job.id, Attempt.state != AttemptState.ENDED)
    )
    return None if attempt_id is None else lock_attempt(unit, attempt_id)


def step_attempt(
    unit: UnitOfWork, loaded: LoadedAttempt, event: attempts.Event, policy: Policy
) -> tuple[attempts.Command, ...]:
    """Apply one event to a locked attempt, with all its consequences: job, allocation, wake-ups, events."""
    timers = timers_of(job_request(loaded.job), policy)
    before = attempt_lifecycle(loaded.attempt, loaded.hosts, job_request(loaded.job), timers)
    after, commands = attempts.step(before, event, to_ms(unit.now), timers)
    if after != before:
        reporter = event.node_id if isinstance(event, attempts.Started | attempts.Exited | attempts.Cleaned) else None
        store_attempt(unit, loaded.attempt, loaded.hosts, after, reporter=reporter)
        _lift_unclean(unit, loaded, before)
    for command in commands:
        if isinstance(command, attempts.Wake):
            wake(unit, command.node_id, loaded.attempt.id)
        elif isinstance(command, attempts.Ended):
            _end_attempt(unit, loaded, command, policy)
    if after != before and after.state is AttemptState.ENDED:
        if before.state is not AttemptState.ENDED:
            checkpoints.drop_unfinished(unit, loaded.attempt)
            settle(unit, loaded.attempt, loaded.hosts)
            per_node = job_request(loaded.job).shape.num_ranks_per_node
            settle_stragglers(unit, loaded.attempt, num_ranks=len(loaded.hosts) * per_node)
            resume_holds.keep(unit, loaded.job, loaded.attempt, loaded.hosts)
        _release_clean(unit, loaded)
    return commands


def _end_attempt(unit: UnitOfWork, loaded: LoadedAttempt, ended: attempts.Ended, policy: Policy) -> None:
    job = loaded.job
    suspicion = suspects.suspicion_about(unit, job, policy)
    words = None if suspicion is None else suspects.text_of(suspicion)
    cause = ended.verdict.cause
    is_counted = CAUSE_RULES[cause].budget is Budget.JOB or cause in {*_COUNTED_IN_A_ROW, *MATTERS_TWICE}
    has_progressed = is_counted and checkpoints.has_progressed(unit.session, loaded.attempt)
    known = ends.ending_of(loaded.attempt, loaded.hosts, job_request(job).rerun_exit_codes)
    is_known_final = known is not None and known.is_final and cause is Cause.USER_ERROR
    hang = hangs.hang_that_ended(unit.session, loaded.attempt, cause)
    if hang is not None:
        hangs.blame_host(hang, loaded.hosts)
    held = reruns.settle_end(unit.session, job, loaded.attempt, cause, loaded.hosts)
    end = jobs.AttemptEnded(
        ended.verdict if hang is None else replace(ended.verdict, proof=hang.sentence),
        words,
        hold=held if hang is None else hangs.why_on_hold(hang),
        has_progressed=has_progressed,
        is_final=is_known_final,
        recurs=not has_progressed and _is_second_in_a_row(unit, loaded.attempt, cause),
        has_lacked=known is not None
        and known.has_lacked
        and ends.is_missing_everywhere(unit, job, loaded.hosts, cause),
    )
    step_job(unit, job, end, policy)
    if end.has_lacked and job.state is JobState.HELD:
        _note_bundle_awaited(unit, job, loaded.attempt)
    if suspicion is not None and job.state is JobState.HELD:
        suspects.open_suspicion(unit, job, suspicion)


def _note_bundle_awaited(unit: UnitOfWork, job: Job, attempt: Attempt) -> None:
    """Have a job that is HELD for what the attempt lacked continue by itself, if that was a part of its bundle."""
    if note_awaited(unit, job.id, job_request(job).bundle, attempt.placed_at):
        show_bundle_awaited(job)


def _is_second_in_a_row(unit: UnitOfWork, attempt: Attempt, cause: Cause) -> bool:
    """Return whether the job's attempt before ended by the same cause, if that changes what follows."""
    if cause not in MATTERS_TWICE or (cause is Cause.CORRUPTION and reruns.has_requested(unit.session, attempt)):
        return False
    earlier = select(Attempt.cause).where(Attempt.job_id == attempt.job_id, Attempt.fence < attempt.fence)
    return unit.session.scalar(earlier.order_by(Attempt.fence.desc()).limit(1)) is cause


def step_job(unit: UnitOfWork, job: Job, event: jobs.Event, policy: Policy) -> None:
    """Apply one event to a locked job; a cancel also stops its live attempt."""
    timers, was = Timers.of(policy), job.state
    after, commands = jobs.step(job_lifecycle(job), event, to_ms(unit.now), timers)
    store_job(unit, job, after)
    if was is JobState.QUEUED and job.state in {JobState.HELD, JobState.CANCELLED}:
        _wake_checking_host(unit, job)
    if was is not JobState.QUEUED and job.state is JobState.QUEUED:
        end_open_preflight(unit, job)
    unit.wake(SCHEDULER_CHANNEL)
    for _ in commands:
        loaded = live_attempt_of(unit, job)
        if loaded is not None:
            stop_attempt(unit, loaded, StopReason.CANCEL, policy)


def _wake_checking_host(unit: UnitOfWork, job: Job) -> None:
    """Wake the host that runs a preflight of a job that waits no more: its next heartbeat lists it no more."""
    look = open_preflight(unit, job)
    if look is not None:
        wake(unit, look.node_id, AttemptId(look.preflight_id))


def stop_attempt(
    unit: UnitOfWork,
    loaded: LoadedAttempt,
    reason: StopReason,
    policy: Policy,
    *,
    grace: timedelta | None = None,
    requested_by: str | None = None,
    detail: str = "",
) -> None:
    """Ask a locked attempt to stop: the request is a row of its own, with the deadline that the attempt was given."""
    timers = Timers.of(policy)
    if grace is None:
        grace = timedelta(milliseconds=grace_ms(job_request(loaded.job), timers))
    deadline = unit.now + grace
    unit.session.add(
        StopRequest(
            id=new_id("stop_request"),
            attempt_id=loaded.attempt.id,
            tenant_id=loaded.attempt.tenant_id,
            reason=reason,
            deadline_at=deadline,
            requested_by=requested_by or unit.principal.name,
            detail=detail,
            created_at=unit.now,
        )
    )
    unit.emit(
        "attempt.stop_requested",
        "attempt",
        loaded.attempt.id,
        tenant_id=loaded.attempt.tenant_id,
        payload={"job_id": loaded.job.id, "reason": reason, "deadline_at": deadline.isoformat()},
    )
    step_attempt(unit, loaded, attempts.StopRequested(reason, to_ms(deadline)), policy)


def wake(unit: UnitOfWork, node_id: NodeId, attempt_id: AttemptId) -> None:
    """Wake a host about an attempt. The wake-up carries nothing: the heartbeat's answer carries the order."""
    unit.enqueue(WAKEUP_TOPIC, node_id, {"attempt_id": attempt_id})
    unit.wake(OUTBOX_CHANNEL)


def _release_clean(unit: UnitOfWork, loaded: LoadedAttempt) -> None:
    """Move the ended attempt's GPUs to CLEANING, and on each host that is proved clean to RELEASED (I22)."""
    allocation = unit.session.scalar(
        select(Allocation).where(Allocation.attempt_id == loaded.attempt.id).with_for_update(key_share=True)
    )
    if allocation is None or allocation.state is AllocationState.RELEASED:
        return
    gpus = unit.session.scalars(
        select(AllocationGpu)
        .where(AllocationGpu.allocation_id == allocation.id)
        .order_by(AllocationGpu.gpu_uuid)
        .with_for_update(key_share=True)
    ).all()
    clean_nodes = {host.node_id for host in loaded.hosts if host.state is HostPartState.CLEAN}
    if allocation.state is AllocationState.ASSIGNED:
        _move_allocation(unit, allocation, AllocationState.CLEANING)
    for gpu in gpus:
        if gpu.state is AllocationState.ASSIGNED:
            gpu.state = AllocationState.CLEANING
    unit.session.flush()
    for gpu in gpus:
        if gpu.state is AllocationState.CLEANING and gpu.node_id in clean_nodes:
            gpu.state = AllocationState.RELEASED
    if all(gpu.state is AllocationState.RELEASED for gpu in gpus):
        allocation.released_at = unit.now
        _move_allocation(unit, allocation, AllocationState.RELEASED)
    unit.wake(SCHEDULER_CHANNEL)


def _move_allocation(unit: UnitOfWork, allocation: Allocation, state: AllocationState) -> None:
    origin = allocation.state
    allocation.state = state
    unit.emit(
        f"allocation.{state.lower()}",
        "allocation",
        allocation.id,
        tenant_id=allocation.tenant_id,
        payload={"job_id": allocation.job_id, "attempt_id": allocation.attempt_id, "from": origin, "to": state},
    )


def cordon_unclean(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, why: str) -> None:
    """Cordon a host that could not be proved clean, until it is, or a person has checked it."""
    place = f"attempt {loaded.attempt.id} on {node_id}"
    is_standing = unit.session.scalar(
        select(Cordon.id).where(Cordon.node_id == node_id, Cordon.reason_code == UNCLEAN, Cordon.released_at.is_(None))
    )
    if is_standing is not None:
        return
    cordons.stand(unit, UNCLEAN, f"{place}: {why}", node_id=node_id)


def _lift_unclean(unit: UnitOfWork, loaded: LoadedAttempt, before: AttemptLifecycle) -> None:
    """Lift the cordon of a host that is proved clean after all, unless another attempt there is not yet.

    The proof is the host's report or its reboot.
    """
    unproved = {part.node_id for part in before.hosts if part.state is not HostPartState.CLEAN}
    proved = [host.node_id for host in loaded.hosts if host.node_id in unproved and host.state is HostPartState.CLEAN]
    if not proved:
        return
    standing = select(Cordon).where(
        Cordon.node_id.in_(proved), Cordon.reason_code == UNCLEAN, Cordon.released_at.is_(None)
    )
    # Locked before the other attempts are read: of two attempts that are proved at once the later one sees both.
    for cordon in unit.session.scalars(standing.order_by(Cordon.id).with_for_update(key_share=True)).all():
        others = select(AttemptHost.attempt_id).where(
            AttemptHost.node_id == cordon.node_id,
            AttemptHost.state != HostPartState.CLEAN,
            AttemptHost.clean_proof["clean"].as_boolean().is_(False),
        )
        if unit.session.scalar(others.limit(1)) is None:
            why = f"attempt {loaded.attempt.id} is proved clean there"
            cordons.end(unit, cordon, why)
            unit.audit("cordon.release", "cordon", cordon.id, reason=why)
