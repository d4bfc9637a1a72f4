"""The commit of a reclaim: every victim of one beneficiary is given notice, or none; I6 to I9 are checked again.

One beneficiary's victims are notified together because only together do they free its place. Locks: jobs in id order,
the victims' tenants, then the held GPUs, then quotas: a placement too has its GPUs before its quota.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import and_, or_, select

from control.attempts.attempts import LoadedAttempt, lock_attempt, lock_job, wake
from control.attempts.mapping import job_request
from control.attempts.reclaim_outcomes import record_event
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.inventory import gpu_views
from control.placement import holds
from control.placement.elastic import sizes
from control.placement.workload import workload
from control.reclaim.lending import lending_refusal
from control.reclaim.victims import notify_victim
from control.tenants.quotas import quota_refusal
from health.cohort.cohorts import may_be_mixed
from health.standing.admission import refusal_of
from muster.db.models import Allocation, AllocationGpu, Attempt, Gpu, Job, PolicyVersion, Tenant
from muster.db.models import Reclaim as ReclaimRow
from muster.db.queries.assignments import IS_ASSIGNED
from muster.domain.errors import ConflictError
from muster.domain.exit.causes import GOES_ON_THERE
from muster.domain.ids import AttemptId, GpuUuid, JobId, ReclaimId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.policy.tiers import TierPolicy
from muster.domain.principals import Permission
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import AllocationState, JobState, ReclaimState
from muster.identity import new_id
from scheduler.model import Reclaim
from scheduler.reclaim.caps import allowances

NOTIFY: Final = declare_action("reclaim.notify")


class ReclaimLostError(ConflictError):
    """The snapshot no longer holds: no victim was given notice. The next cycle plans again."""

    code, status, title = "reclaim_lost", 409, "The running jobs have changed since the reclaim was planned"


def notify(unit: UnitOfWork, chosen: Sequence[Reclaim], policy: Policy) -> list[ReclaimId]:
    """Commit ``chosen``, all reclaims of the plan for one beneficiary.

    Raises:
        ReclaimLostError: something is no longer as the plan saw it.
    """
    unit.principal.require(Permission.SYSTEM_RUN)
    job, victims = _lock_all(unit, chosen)
    _require_beneficiary(unit, job)
    for wanted, loaded in zip(chosen, victims, strict=True):
        _require_victim(unit, wanted, loaded, job, policy)
    _require_allowance(unit, job, victims, chosen, policy)
    held = sorted({uuid for wanted in chosen for uuid in wanted.hold})
    _require_place(unit, job, held, {loaded.attempt.id for loaded in victims}, policy)
    _require_lent(unit, job, victims, chosen, policy)
    _require_quota(unit, job, len(held))
    holds.hold_alone(unit, job, held)
    version = unit.session.scalar(select(PolicyVersion.version).where(PolicyVersion.is_active))
    rows = [_give_notice(unit, wanted, loaded, job, version) for wanted, loaded in zip(chosen, victims, strict=True)]
    unit.session.flush()
    for loaded in victims:
        _deliver(unit, loaded, policy)
    _notify_beneficiary(unit, job, rows)
    return [row.id for row in rows]


def _lock_all(unit: UnitOfWork, chosen: Sequence[Reclaim]) -> tuple[Job, list[LoadedAttempt]]:
    beneficiary = chosen[0].beneficiary
    query = select(Attempt.id, Attempt.job_id).where(Attempt.id.in_([wanted.victim for wanted in chosen]))
    job_of: dict[AttemptId, JobId] = dict(unit.session.execute(query).all())
    for job_id in sorted({beneficiary, *job_of.values()}):
        lock_job(unit, job_id)
    return lock_job(unit, beneficiary), [lock_attempt(unit, wanted.victim) for wanted in chosen]


def _require_beneficiary(unit: UnitOfWork, job: Job) -> None:
    if job.state is not JobState.QUEUED:
        raise ReclaimLostError(f"{job.id} is {job.state} now")
    standing = select(ReclaimRow.id).where(ReclaimRow.beneficiary_job_id == job.id, ReclaimRow.hold_ended_at.is_(None))
    if unit.session.scalar(standing.limit(1)) is not None:
        raise ReclaimLostError(f"GPUs are being reclaimed for {job.id} already")


def _require_quota(unit: UnitOfWork, job: Job, num_gpus: int) -> None:
    """Check I6: nothing is reclaimed for a job that may not be placed once other jobs with holds have started."""
    refusal = quota_refusal(unit, job.tenant_id, job.tier, num_gpus, kept_alongside=job.id)
    if refusal is not None:
        raise ReclaimLostError(refusal)


def _require_victim(unit: UnitOfWork, wanted: Reclaim, loaded: LoadedAttempt, job: Job, policy: Policy) -> None:
    """Check I7, the minimum run time of I9, and that the victim still runs on the GPUs that the plan saw."""
    attempt = loaded.attempt
    tier = _reclaimable(loaded.job.tier, job.tier, policy)
    if tier is None:
        raise ReclaimLostError(f"the tier {loaded.job.tier} is not reclaimed for the tier {job.tier} (I7)")
    if attempt.ended_at is not None or attempt.ending_cause is not None or attempt.stop_reason is not None:
        raise ReclaimLostError(f"{attempt.id} is ending or being stopped already")
    began_at = attempt.running_at or unit.now
    if began_at + timedelta(seconds=tier.min_run_s) > unit.now:
        raise ReclaimLostError(f"{attempt.id} has not had its minimum run time (I9)")
    if tier.notice_s != wanted.notice_s:
        raise ReclaimLostError(f"the notice of the tier {loaded.job.tier} has changed (I8)")
    query = (
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .where(Allocation.attempt_id == attempt.id, AllocationGpu.state == AllocationState.ASSIGNED)
    )
    if set(unit.session.scalars(query)) != {*wanted.gpus, *wanted.keeps}:
        raise ReclaimLostError(f"{attempt.id} holds other GPUs now")
    if wanted.keeps and len(wanted.keeps) // job_request(loaded.job).shape.gpus_per_node < sizes(loaded.job).fewest:
        raise ReclaimLostError(f"{loaded.job.id} may not continue with so few hosts")


def _reclaimable(victim_tier: str, beneficiary_tier: str, policy: Policy) -> TierPolicy | None:
    """Return the victim's tier if it may be reclaimed for the other. Within one tier only lent GPUs may be.

    ``_require_lent`` checks the latter.
    """
    tier, above = policy.tiers.get(victim_tier), policy.tiers.get(beneficiary_tier)
    if tier is None or above is None or tier.notice_s is None:
        return None
    return tier if tier.priority < above.priority or victim_tier == beneficiary_tier else None


def _require_allowance(
    unit: UnitOfWork, job: Job, victims: Sequence[LoadedAttempt], chosen: Sequence[Reclaim], policy: Policy
) -> None:
    """Check the cap of I9, with the victims' tenants locked: two commits never share one allowance.

    The beneficiary's tenant is locked with them, since its notices name it once quotas are locked, which come after
    tenants.
    """
    lost: dict[TenantId, int] = {}
    for wanted, loaded in zip(chosen, victims, strict=True):
        tenant_id = loaded.attempt.tenant_id
        lost[tenant_id] = lost.get(tenant_id, 0) + len(wanted.gpus)
    concerned = {*lost, job.tenant_id}
    locked = select(Tenant.id).where(Tenant.id.in_(concerned)).order_by(Tenant.id).with_for_update(key_share=True)
    unit.session.scalars(locked).all()
    now = workload(unit.session, unit.now, policy, tenants=lost)
    notified = {reclaim.victim for reclaim in now.reclaims}
    allowance = allowances(now, policy, notified)
    for tenant_id, num_gpus in sorted(lost.items()):
        if num_gpus > allowance.get(tenant_id, 0):
            raise ReclaimLostError(f"{tenant_id} would lose more to reclaim than its cap in this window (I9)")


def _require_lent(
    unit: UnitOfWork, job: Job, victims: Sequence[LoadedAttempt], chosen: Sequence[Reclaim], policy: Policy
) -> None:
    """Check that within a tier a tenant takes back only GPUs that it has lent."""
    lent = [loaded for loaded in victims if loaded.job.tier == job.tier]
    if not lent:
        return
    attempts = {loaded.attempt.id for loaded in lent}
    given = {wanted.victim: len(wanted.gpus) for wanted in chosen if wanted.victim in attempts}
    refusal = lending_refusal(unit, job, len(chosen[0].hold), [loaded.job for loaded in lent], given, policy)
    if refusal is not None:
        raise ReclaimLostError(refusal)


def _require_place(
    unit: UnitOfWork, job: Job, assigned: Sequence[GpuUuid], victims: Collection[AttemptId], policy: Policy
) -> None:
    """Check the beneficiary's place: one cohort, admitted, and free once victims and ending attempts have left."""
    unit.session.scalars(
        select(Gpu.uuid).where(Gpu.uuid.in_(assigned)).order_by(Gpu.uuid).with_for_update(key_share=True)
    )
    views = gpu_views(unit.session, unit.now, policy.health, only=assigned)
    homogeneity = policy.homogeneity(job.tier)
    if len(views) != len(assigned) or not may_be_mixed((view.cohort_key for view in views), homogeneity):
        raise ReclaimLostError("the GPUs that would be held are no longer one cohort")
    if on_hold := holds.hold_gpus_of_others(unit, assigned, but_for=job.id):
        raise ReclaimLostError(f"{on_hold[0]} is held for a job already")
    staying = _staying(unit, assigned, victims)
    for view in views:
        refusal = refusal_of(replace(view.facts, is_assigned=view.uuid in staying), policy.tier(job.tier))
        if refusal is not None:
            raise ReclaimLostError(f"{view.uuid} cannot be held for {job.id}: {refusal}")


def _staying(unit: UnitOfWork, assigned: Sequence[GpuUuid], victims: Collection[AttemptId]) -> set[GpuUuid]:
    """Return GPUs of attempts that are neither victims nor known to end, or whose jobs continue on them."""
    goes_on = and_(Attempt.stop_reason.is_not(None), Attempt.stop_reason.in_(GOES_ON_THERE))
    has_end = or_(Attempt.stop_deadline_at.is_not(None), Attempt.wall_deadline_at.is_not(None))
    ends = or_(Attempt.id.in_(victims), and_(has_end, ~goes_on))
    query = (
        select(AllocationGpu.gpu_uuid)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Attempt, Attempt.id == Allocation.attempt_id)
        .where(AllocationGpu.gpu_uuid.in_(assigned), IS_ASSIGNED, ~ends)
    )
    return set(unit.session.scalars(query))


def _give_notice(unit: UnitOfWork, wanted: Reclaim, loaded: LoadedAttempt, job: Job, version: int | None) -> ReclaimRow:
    """Store the notice by I8: its deadline is the commit's own time plus the tier's notice, and never changes."""
    victim, num_gpus = loaded.job, len(wanted.hold)
    best = wanted.runner_up
    row = ReclaimRow(
        id=ReclaimId(new_id("reclaim")),
        beneficiary_job_id=job.id,
        beneficiary_tenant_id=job.tenant_id,
        beneficiary_tier=job.tier,
        victim_attempt_id=loaded.attempt.id,
        victim_job_id=victim.id,
        victim_tenant_id=victim.tenant_id,
        victim_tier=victim.tier,
        num_gpus=len(wanted.gpus),
        state=ReclaimState.NOTIFIED,
        reason=_reason(victim.tier, job.tier, num_gpus),
        notice_s=wanted.notice_s,
        notified_at=unit.now,
        deadline_at=unit.now + timedelta(seconds=wanted.notice_s),
        cost_gpu_s=wanted.cost_gpu_s,
        keeps=list(wanted.keeps) or None,
        runner_up=None if best is None else {"victims": list(best.victims), "cost_gpu_s": best.cost_gpu_s},
        policy_version=version,
    )
    unit.session.add(row)
    beneficiary: dict[str, Any] = {"tier": job.tier, "num_gpus": num_gpus}
    if job.tenant_id == victim.tenant_id:
        beneficiary["job_id"] = job.id
    record_event(
        unit,
        row,
        "reclaim.notified",
        to=row.state,
        reason=row.reason,
        beneficiary=beneficiary,
        notice_s=row.notice_s,
        deadline_at=row.deadline_at.isoformat(),
        num_gpus=row.num_gpus,
        num_kept_gpus=len(row.keeps or ()),
        cost_gpu_s=round(row.cost_gpu_s, 1),
    )
    return row


def _reason(victim_tier: str, tier: str, num_gpus: int) -> str:
    if victim_tier == tier:
        return f"what was borrowed in the tier {tier} is taken back by a tenant for {num_gpus} GPUs of its guarantee"
    return f"capacity of the tier {victim_tier} is taken back for a job of the tier {tier} of {num_gpus} GPUs"


def _deliver(unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy) -> None:
    """Deliver the notice by the hosts' heartbeats; where no host runs any part of the victim, stop it at once."""
    running = [host.node_id for host in loaded.hosts if host.state in PARTS_THAT_MAY_RUN]
    if not running:
        notify_victim(unit, loaded, policy)
    for node_id in running:
        wake(unit, node_id, loaded.attempt.id)


def _notify_beneficiary(unit: UnitOfWork, job: Job, rows: Sequence[ReclaimRow]) -> None:
    until = max(row.deadline_at for row in rows)
    payload = {
        "job_id": job.id,
        "reclaim_ids": [row.id for row in rows],
        "num_gpus": sum(row.num_gpus for row in rows),
        "until": until.isoformat(),
        "reason": "capacity is being reclaimed for it",
    }
    unit.emit("job.reclaim_held", "job", job.id, tenant_id=job.tenant_id, payload=payload)
