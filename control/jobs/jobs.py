"""Jobs as their tenants use them: submit, read, cancel, logs."""

import json
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm.attributes import set_committed_value

from control.attempts import suspects
from control.attempts.attempts import lock_job, step_job
from control.attempts.git_bundles import require_allowed
from control.attempts.mapping import emit_job, submitted_job
from control.attempts.types import SubmittedJob
from control.content.uses import pin_folder, usable_bundle
from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.core.visibility import may_see
from control.fleet.inventory import count_gpus
from control.jobs.environments import allow_builds_again
from control.jobs.labels import require_labels
from control.jobs.residency import require_residency
from control.ledger.budgets import spent_refusal
from control.policy.policies import active_policy
from control.secrets.job_secrets import note_secrets, require_deploy_secret, require_secrets
from control.tenants.job_limits import admit_submission
from muster.db.models import Job, Node, Tenant
from muster.domain.errors import (
    ConflictError,
    NotFoundError,
    PreconditionFailedError,
    ValidationFailedError,
)
from muster.domain.ids import JobId, TenantId
from muster.domain.job.request import MAX_LISTED_BYTES, JobRequest, listed_bytes, request_of_spec
from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle import job as jobs
from muster.domain.principals import Permission
from muster.domain.residency import StorePlace
from muster.domain.states import TERMINAL_JOB_STATES, JobState
from muster.identity import new_id
from muster.wire.host import SEALED_SECRETS
from scheduler.solve.job_rules import faults_of, has_tp_across_nodes

_NEW_FIELDS: Final = frozenset(
    {
        *("awaits_bundle", "bundle", "environment", "git", "job_class", "on_hang", "on_straggler", "on_value_fault"),
        *("rerun_exit_codes", "secret_env"),
    }
)
"""Fields of a specification, its request or its program that release 0.1.0 does not know."""
SUBMIT: Final = declare_action("job.submit")
CANCEL: Final = declare_action("job.cancel")
RELEASE: Final = declare_action("job.release")
READ: Final = declare_action("job.read")
LARGEST_HOST_GPUS: Final = 8
"""GPUs of the largest host, as assumed before any host is enrolled."""


def submit(
    unit: UnitOfWork,
    spec: JobSpec,
    *,
    tenant_id: TenantId | None = None,
    reason: str | None = None,
    copied_from: JobId | None = None,
    store: StorePlace | None = None,
) -> SubmittedJob:
    """Accept a job: from this commit on it is never lost (I12). ``reason``: a person's, for the audit.

    ``store``: the content store; None: there is none. Everything that may refuse the job is asked before the first
    change.

    Raises:
        ValidationFailedError: a tier or a class that the policy does not define, a label that it requires, a gang
            larger than the fleet, no such tenant, no such job as ``copied_from``, a secret or a whole bundle that is
            not there, a git host that the operator does not name, a commit without a content store, a place outside
            the tenant's residency rule.
        TenantLimitError: the tenant has reached a limit of the policy.
        ConflictError: a budget of the tenant, or of one above it, is spent and lets no new jobs in.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    owner = owner_of(unit, tenant_id)
    _require_original(unit, copied_from)
    spec = settled(unit, spec)
    require_possible(unit, spec)
    require_residency(unit.session, spec, owner, store)
    sealed = require_secrets(unit.session, spec, owner)
    require_repository(unit, spec, owner, store)
    require_budget(unit, owner)
    bundle = None if spec.program.bundle is None else usable_bundle(unit, owner, spec.program.bundle)
    job = _row_of(unit, spec, owner, needs=(SEALED_SECRETS,) if sealed else ())
    job.copied_from, job.job_class = copied_from, active_policy(unit.session).objectives.class_of(spec.job_class)
    admit_submission(unit, owner, job.spec_bytes or 0)
    unit.session.add(job)
    emit_job(unit, job, None)
    unit.audit("job.submit", "job", job.id, tenant_id=owner, reason=reason, detail=_detail_of(spec, copied_from))
    unit.wake(SCHEDULER_CHANNEL)
    unit.session.flush()
    note_secrets(unit, job.id, sealed)
    if bundle is not None:
        pin_folder(unit, job.id, bundle)
    unit.session.flush()
    return submitted_job(unit.session, job)


def require_budget(unit: UnitOfWork, owner: TenantId) -> None:
    """Refuse a new job of a tenant whose budget, or that of its department, is spent."""
    refusal = spent_refusal(unit.session, owner, unit.now)
    if refusal is not None:
        suggestion = "`muster tenant budget show` shows it; an operator can raise or lift it."
        raise ConflictError(f"no new job is accepted: {refusal}", suggestion=suggestion)


def _detail_of(spec: JobSpec, copied_from: JobId | None) -> dict[str, object]:
    """Return what the audit keeps of a submission."""
    detail: dict[str, object] = {"name": spec.name, "tier": spec.tier}
    if has_tp_across_nodes(spec):
        detail["tp_across_nodes"] = True
    if copied_from is not None:
        detail["copied_from"] = copied_from
    return detail


def _require_original(unit: UnitOfWork, job_id: JobId | None) -> None:
    """Require that the copied job exists and is visible: another tenant's is as one that does not exist."""
    if job_id is None:
        return
    original = unit.session.get(Job, job_id)
    if original is None or not may_see(unit.principal, original.tenant_id):
        raise ValidationFailedError.at("/copied_from", "unknown_job", "there is no such job")


def _row_of(unit: UnitOfWork, spec: JobSpec, owner: TenantId, *, needs: tuple[str, ...]) -> Job:
    """Return the job's row. ``needs``: capabilities of its hosts that its specification alone does not name."""
    document, request = readable_by_0_1_0(spec), readable_by_0_1_0(request_of_spec(spec))
    request["capabilities"] = [*request["capabilities"], *needs]
    job = Job(
        id=JobId(new_id("job")),
        tenant_id=owner,
        name=spec.name,
        tier=spec.tier,
        state=JobState.QUEUED,
        state_reason="waiting for the scheduler",
        spec=document,
        submitted_by=unit.principal.name,
        created_at=unit.now,
        updated_at=unit.now,
        stored_request=request,
        labels=document["labels"],
        spec_bytes=len(spec.model_dump_json().encode()),
    )
    set_committed_value(job, "request", request)
    return job


def readable_by_0_1_0(spec: JobSpec | JobRequest) -> dict[str, Any]:
    """Return the specification, or its request, as it is stored.

    Fields that 0.1.0 refuses are left out where they are not set. So a scheduler of that release next to this one, or
    after it, reads each job that does not use them.
    """
    document = spec.model_dump(mode="json")
    if "program" in document:
        document["program"] = _without_new_fields(document["program"])
    return _without_new_fields(document)


def _without_new_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in _NEW_FIELDS or value}


def owner_of(unit: UnitOfWork, requested: TenantId | None) -> TenantId:
    own = unit.principal.tenant_id
    if own is not None:
        if requested not in {None, own}:
            raise ValidationFailedError.at("/tenant_id", "foreign_tenant", "a tenant submits for itself only")
        return own
    if requested is None:
        raise ValidationFailedError.at("/tenant_id", "missing", "an operator names the tenant that the job is for")
    if unit.session.get(Tenant, requested) is None:
        raise ValidationFailedError.at("/tenant_id", "unknown_tenant", "there is no such tenant")
    return requested


def settled(unit: UnitOfWork, spec: JobSpec) -> JobSpec:
    """Return the job with its shape as nodes × GPUs, by the largest hosts that are enrolled."""
    if spec.shape.gpus is None:
        return spec
    largest = unit.session.scalar(select(func.max(Node.num_gpus))) or LARGEST_HOST_GPUS
    return spec.model_copy(update={"shape": spec.shape.settled(max(largest, 1))})


def require_repository(unit: UnitOfWork, spec: JobSpec, owner: TenantId, store: StorePlace | None) -> None:
    """Raise ValidationFailedError if the job names a git host that the operator does not, a secret that is not, or a
    commit where no content store keeps bundles.
    """
    if spec.program.git is not None:
        if store is None:
            words = "a host makes a bundle of the commit, and no content store is configured that keeps it"
            advice = "Ask the operator for one, or name a folder that all hosts have"
            raise ValidationFailedError.at("/program/git", "no_content_store", f"{words}. {advice}")
        require_allowed(spec.program.git, active_policy(unit.session))
        require_deploy_secret(unit.session, spec.program.git.secret, spec.name, owner)


def require_possible(unit: UnitOfWork, spec: JobSpec) -> None:
    """Refuse at once a job that no wait could ever make possible; all other jobs are queued."""
    policy = active_policy(unit.session)
    if spec.tier not in policy.tiers:
        raise ValidationFailedError.at(
            "/tier", "unknown_tier", f"the policy defines: {', '.join(sorted(policy.tiers))}"
        )
    if spec.job_class is not None and spec.job_class not in policy.objectives.classes:
        known = ", ".join(sorted(policy.objectives.classes))
        raise ValidationFailedError.at("/job_class", "unknown_class", f"the policy defines: {known}")
    require_labels(spec.labels, policy.limits.required_labels)
    for fault in faults_of(spec, policy.placement):
        raise ValidationFailedError.at(*fault)
    if (num_bytes := listed_bytes(spec)) > MAX_LISTED_BYTES:
        pointer = "/labels" if len(json.dumps(spec.labels)) * 2 > num_bytes else "/node_labels"
        most = f"the job without its program may have {MAX_LISTED_BYTES:,} bytes as JSON; this one has {num_bytes:,}"
        raise ValidationFailedError.at(pointer, "too_long", f"{most}: shorten its labels")
    num_gpus = count_gpus(unit.session)
    least = spec.shape.sizes[0] * spec.shape.gpus_per_node
    if num_gpus and least > num_gpus:
        raise ValidationFailedError.at(
            "/shape", "larger_than_fleet", f"asks for {least} GPUs; the fleet has {num_gpus}"
        )


def cancel(
    unit: UnitOfWork, job_id: JobId, *, reason: str | None = None, expected_version: int | None = None
) -> SubmittedJob:
    """Cancel: at once while it waits, else when its programs have stopped. Cancelling twice is the same as once.

    Raises:
        NotFoundError: no such job, or another tenant's.
        ConflictError: the job has ended by itself.
        PreconditionFailedError: it is not at ``expected_version`` any more.
    """
    unit.principal.require(Permission.JOB_CANCEL)
    job = lock_job(unit, job_id)
    if not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    if expected_version is not None and job.version != expected_version:
        raise PreconditionFailedError(current_version=job.version)
    if job.state is JobState.CANCELLED or (
        job.cancel_requested_at is not None and job.state not in TERMINAL_JOB_STATES
    ):
        return submitted_job(unit.session, job)
    if job.state in TERMINAL_JOB_STATES:
        message = f"the job has ended already: {job.state}"
        raise ConflictError(message, suggestion="There is nothing to cancel.")
    unit.audit("job.cancel", "job", job.id, tenant_id=job.tenant_id, reason=reason, detail={"state": job.state})
    unit.emit("job.cancel_requested", "job", job.id, tenant_id=job.tenant_id, payload={"reason": reason})
    step_job(unit, job, jobs.CancelRequested(), active_policy(unit.session))
    unit.session.flush()
    return submitted_job(unit.session, job)


def release(unit: UnitOfWork, job_id: JobId, *, reason: str | None = None) -> SubmittedJob:
    """Release a HELD job to the queue. Only an operator releases a suspect program, also once it is cancelled.

    Raises:
        NotFoundError: no such job, or another tenant's.
        ForbiddenError: its program is suspected, and the caller does not decide about GPUs.
        ConflictError: nothing holds it.
    """
    unit.principal.require(Permission.JOB_SUBMIT)
    job = lock_job(unit, job_id)
    if not may_see(unit.principal, job.tenant_id):
        raise NotFoundError
    suspicion = suspects.open_suspicion_of(unit, job.id)
    if suspicion is not None:
        unit.principal.require(Permission.GPU_WRITE)
        suspects.close_suspicion(unit, suspicion, reason=reason)
    elif job.state is not JobState.HELD:
        message = f"nothing holds this job: it is {job.state}"
        raise ConflictError(message, suggestion="Only a HELD job can be released.")
    unit.audit("job.release", "job", job.id, tenant_id=job.tenant_id, reason=reason, detail={"was": job.state_reason})
    unit.emit("job.released", "job", job.id, tenant_id=job.tenant_id, payload={"reason": reason})
    step_job(unit, job, jobs.ReleaseRequested(), active_policy(unit.session))
    allow_builds_again(unit, job)
    unit.session.flush()
    return submitted_job(unit.session, job)
