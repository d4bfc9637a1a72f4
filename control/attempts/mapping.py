"""Mapping between rows and the pure machines' data. Decisions of the machines become column values and events here."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from control.attempts.types import SubmittedJob
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from health.pairwise.start import CheckState
from muster.db.models import Attempt, AttemptHost, Job, JobWaitChange, Node
from muster.domain.ids import JobId, NodeId
from muster.domain.job.request import ENVIRONMENT, JobRequest, read_request
from muster.domain.job.spec import JobSpec
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.lifecycle.contact import LastContact
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, JobLifecycle, StopRequest, Timers, Verdict
from muster.domain.policy.document import Policy
from muster.domain.states import TERMINAL_JOB_STATES, AttemptState, HostPartState, JobState
from muster.domain.times import to_ms, to_time

_READ_REQUEST: Final = "_muster_read_request"
_MET: Final = (CheckState.PASSED, CheckState.SKIPPED)


def job_request(job: Job) -> JobRequest:
    """Return the job's request.

    It is parsed once for each loaded row, since it is read often and hardly ever changes.
    """
    known: JobRequest | None = getattr(job, _READ_REQUEST, None)
    if known is None:
        known = read_request(job.request)
        setattr(job, _READ_REQUEST, known)
    return known


def replace_request(job: Job, **changed: object) -> None:
    """Store the request with other fields; a field of None or False is left out. The job is locked."""
    request = {name: value for name, value in {**job.request, **changed}.items() if name not in changed or value}
    job.stored_request = request
    set_committed_value(job, "request", request)
    if hasattr(job, _READ_REQUEST):
        delattr(job, _READ_REQUEST)


def stored_spec(session: Session, job_id: JobId) -> dict[str, Any]:
    """Read the specification with its program, which may be long: for a host that starts it, and for its own page."""
    spec: dict[str, Any] = session.scalars(select(Job.spec).where(Job.id == job_id)).one()
    return spec


def spec_of(session: Session, job: Job) -> JobSpec:
    """Return the specification of ``stored_spec``."""
    return JobSpec.model_validate(stored_spec(session, job.id), strict=False)


def submitted_job(session: Session, job: Job) -> SubmittedJob:
    """Return the record of a loaded job with its specification."""
    if "spec" in inspect(job).unloaded:
        set_committed_value(job, "spec", stored_spec(session, job.id))
    return record_of(job, SubmittedJob)


def last_contact_of(node: Node) -> LastContact | None:
    if node.boot_id is None or node.last_heartbeat_at is None:
        return None
    return LastContact(node.boot_id, to_ms(node.last_heartbeat_at), node.heartbeat_seq, tuple(node.past_boot_ids))


def job_lifecycle(job: Job) -> JobLifecycle:
    restart = job_request(job).restart
    return JobLifecycle(
        job_id=job.id,
        state=job.state,
        max_restarts=restart.max_restarts,
        restarts_used=job.restarts_used,
        launch_failures=job.launch_failures,
        max_oom_doublings=restart.gpu_oom_doublings,
        oom_doublings=job.oom_doublings,
        next_try_ms=None if job.next_try_at is None else to_ms(job.next_try_at),
        is_cancel_requested=job.cancel_requested_at is not None,
        reason=job.state_reason,
    )


def attempt_lifecycle(
    attempt: Attempt, hosts: Sequence[AttemptHost], request: JobRequest, timers: Timers
) -> AttemptLifecycle:
    stop = None
    if attempt.stop_reason is not None:
        stop = StopRequest(attempt.stop_reason, to_ms(attempt.stop_deadline_at))
    ending = None
    if attempt.ending_cause is not None:
        ending = Verdict(
            attempt.ending_cause,
            attempt.ending_proof or "",
            attempt.ending_is_cascade,
            is_reported=attempt.ending_is_reported,
        )
    return AttemptLifecycle(
        attempt_id=attempt.id,
        job_id=attempt.job_id,
        fence=attempt.fence,
        hosts=tuple(_host_part(host) for host in hosts),
        placed_ms=to_ms(attempt.placed_at),
        state=attempt.state,
        resume_state=attempt.resume_state,
        on_node_loss=attempt.on_node_loss,
        stop_grace_ms=grace_ms(request, timers),
        wall_time_ms=None if request.wall_time_s is None else round(request.wall_time_s * 1000),
        wall_deadline_ms=None if attempt.wall_deadline_at is None else to_ms(attempt.wall_deadline_at),
        stop=stop,
        ending=ending,
        go_ms=None if attempt.go_at is None else to_ms(attempt.go_at),
        awaits_pairwise=attempt.pairwise is not None and attempt.pairwise["state"] not in _MET,
    )


def timers_of(request: JobRequest, policy: Policy) -> Timers:
    """Return the policy's timers for one job: a host that gets its environment is ready later."""
    timers = Timers.of(policy)
    if ENVIRONMENT not in request.capabilities:
        return timers
    return replace(timers, ready_within_ms=timers.ready_within_ms + round(policy.environment.ready_s * 1000))


def grace_ms(request: JobRequest, timers: Timers) -> int:
    """Return how long the job's programs may take to end after SIGTERM."""
    return timers.stop_grace_ms if request.stop_grace_s is None else round(request.stop_grace_s * 1000)


def _host_part(host: AttemptHost) -> HostPart:
    return HostPart(
        node_id=host.node_id,
        state=host.state,
        boot_id=host.boot_id,
        nonce=host.nonce,
        woken_ms=to_ms(host.woken_at),
        claimed_ms=to_ms(host.claimed_at),
        omitted_ms=None if host.omitted_at is None else to_ms(host.omitted_at),
        is_past_lease=host.is_past_lease,
        awaits_go=host.awaits_go,
        ready_ms=None if host.ready_at is None else to_ms(host.ready_at),
        is_at_fault=host.is_at_fault,
    )


def store_job(unit: UnitOfWork, job: Job, after: JobLifecycle) -> None:
    """Store the decision of the job's machine, with its event when the state changed."""
    origin = job.state
    job.state_reason = after.reason
    job.restarts_used = after.restarts_used
    job.launch_failures = after.launch_failures
    job.oom_doublings = after.oom_doublings
    job.next_try_at = None if after.next_try_ms is None else to_time(after.next_try_ms)
    if after.is_cancel_requested and job.cancel_requested_at is None:
        job.cancel_requested_at = unit.now
    job.updated_at = unit.now
    if after.state is origin:
        return
    job.state, job.wait_verdict = after.state, None
    if after.state is JobState.QUEUED or (origin is JobState.QUEUED and after.state is not JobState.ACTIVE):
        binding = "" if after.state is JobState.QUEUED else None
        unit.session.add(JobWaitChange(job_id=job.id, at=unit.now, binding=binding))
    if after.state in TERMINAL_JOB_STATES:
        job.finished_at = unit.now
    emit_job(unit, job, origin)


def show_bundle_awaited(job: Job) -> None:
    """Have a job that is HELD until its bundle is whole again say so; a step to another state removes that."""
    token = WaitReason.BUNDLE_NEEDED.value
    job.wait_verdict = {"binding": token, "reasons": [[token, None, None]]}


def emit_job(unit: UnitOfWork, job: Job, origin: JobState | None) -> None:
    unit.emit(
        f"job.{job.state.lower()}",
        "job",
        job.id,
        tenant_id=job.tenant_id,
        payload={"from": origin, "to": job.state, "reason": job.state_reason, "name": job.name},
    )


def store_attempt(
    unit: UnitOfWork,
    attempt: Attempt,
    hosts: Sequence[AttemptHost],
    after: AttemptLifecycle,
    *,
    reporter: NodeId | None = None,
) -> None:
    """Store the decision of the attempt's machine, with its event when the state changed.

    ``reporter``: the host whose report this is; its part has an event of its own.
    """
    origin = attempt.state
    attempt.resume_state = after.resume_state
    if after.stop is not None:
        attempt.stop_reason, attempt.stop_deadline_at = after.stop.reason, to_time(after.stop.deadline_ms)
    if after.ending is not None:
        attempt.ending_cause, attempt.ending_proof = after.ending.cause, after.ending.proof
        attempt.ending_is_cascade, attempt.ending_is_reported = after.ending.is_cascade, after.ending.is_reported
    if after.wall_deadline_ms is not None:
        attempt.wall_deadline_at = to_time(after.wall_deadline_ms)
    clean = [host.node_id for host in hosts if host.state is HostPartState.CLEAN]
    for host, part in zip(hosts, after.hosts, strict=True):
        _store_part(unit, host, part)
    _emit_clean(unit, attempt, hosts, {*clean, reporter})
    if after.go_ms is not None and attempt.go_at is None:
        _store_go(unit, attempt, after.go_ms, hosts)
    if after.state is origin:
        return
    attempt.state = after.state
    _stamp(unit, attempt, origin)
    unit.emit(
        f"attempt.{attempt.state.lower()}",
        "attempt",
        attempt.id,
        tenant_id=attempt.tenant_id,
        payload={
            "job_id": attempt.job_id,
            "number": attempt.number,
            "fence": attempt.fence,
            "from": origin,
            "to": attempt.state,
            "cause": attempt.ending_cause,
            "proof": attempt.ending_proof,
        },
    )


def _emit_clean(
    unit: UnitOfWork, attempt: Attempt, hosts: Sequence[AttemptHost], known: AbstractSet[NodeId | None]
) -> None:
    """Name hosts that are clean without their report: by their reboot, or since they never claimed it."""
    clean = [host.node_id for host in hosts if host.state is HostPartState.CLEAN and host.node_id not in known]
    if clean:
        payload = {"job_id": attempt.job_id, "number": attempt.number, "node_ids": clean}
        unit.emit("attempt.hosts_clean", "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)


def _store_go(unit: UnitOfWork, attempt: Attempt, go_ms: int, hosts: Sequence[AttemptHost]) -> None:
    attempt.go_at = to_time(go_ms)
    payload = {"job_id": attempt.job_id, "number": attempt.number, "num_hosts": len(hosts)}
    unit.emit("attempt.all_ready", "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)


def _stamp(unit: UnitOfWork, attempt: Attempt, origin: AttemptState) -> None:
    if attempt.state is AttemptState.CLAIMING and attempt.claimed_at is None:
        attempt.claimed_at = unit.now
    elif attempt.state is AttemptState.RUNNING and attempt.running_at is None:
        attempt.running_at = unit.now
    elif attempt.state is AttemptState.STOPPING and attempt.stopping_at is None:
        attempt.stopping_at = unit.now
    elif attempt.state is AttemptState.ENDED:
        attempt.cause, attempt.proof, attempt.ended_at = attempt.ending_cause, attempt.ending_proof, unit.now
    attempt.lost_at = unit.now if attempt.state is AttemptState.LOST else attempt.lost_at
    if origin is AttemptState.LOST:
        attempt.lost_at = None


def _store_part(unit: UnitOfWork, host: AttemptHost, part: HostPart) -> None:
    host.omitted_at = None if part.omitted_ms is None else to_time(part.omitted_ms)
    host.is_past_lease, host.awaits_go, host.is_at_fault = part.is_past_lease, part.awaits_go, part.is_at_fault
    host.ready_at = None if part.ready_ms is None else to_time(part.ready_ms)
    if part.woken_ms > to_ms(host.woken_at):
        host.woken_at, host.num_wakeups = to_time(part.woken_ms), host.num_wakeups + 1
    if part.claimed_ms != to_ms(host.claimed_at):  # a grant that is given again renews the lease on both ends
        host.boot_id, host.nonce, host.claimed_at = part.boot_id, part.nonce, to_time(part.claimed_ms)
    if part.state is host.state:
        return
    host.state = part.state
    if part.state is HostPartState.STARTED:
        host.started_at = unit.now
    elif part.state is HostPartState.EXITED:
        host.exited_at = unit.now
    elif part.state is HostPartState.CLEAN:
        host.clean_at = unit.now
