"""Taking back lent GPUs, checked again at the commit of notices, with quotas locked and on the present workload."""

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork
from control.placement.elastic import elastic_gangs
from control.placement.workload import workload
from control.tenants.tenancy import locked_holdings
from muster.db.models import GpuHold, Job
from muster.domain.ids import AttemptId
from muster.domain.policy.document import Policy
from scheduler.reclaim.lending import Lending


def lending_refusal(
    unit: UnitOfWork, job: Job, num_gpus: int, victims: Sequence[Job], given: Mapping[AttemptId, int], policy: Policy
) -> str | None:
    """Return why attempts of the beneficiary's own tier may not be reclaimed for it, or None. ``victims``: their jobs.

    ``given``: GPUs that each attempt is asked to release: all, or the GPUs of some hosts.
    """
    locked_holdings(unit, {job.tenant_id, *(victim.tenant_id for victim in victims)}, job.tier)
    now = workload(unit.session, unit.now, policy, elastic=elastic_gangs(unit.session))
    running = sorted(now.running, key=lambda attempt: attempt.attempt_id)
    lending = Lending(now.tenancy, policy, running)
    keeps = {reclaim.victim: len(reclaim.keeps) for reclaim in now.reclaims}
    for attempt in running:
        if attempt.attempt_id in keeps and not attempt.is_stopping:
            lending.leaves(attempt, keeps[attempt.attempt_id])  # its kept GPUs are held from its notice on
    held = select(Job.tenant_id, Job.tier).join(GpuHold, GpuHold.job_id == Job.id).where(Job.id != job.id)
    for tenant_id, tier in unit.session.execute(held):
        lending.comes(tenant_id, tier, 1)
    claim = lending.claim(job.tenant_id, job.tier, num_gpus)
    if claim is None:
        return f"with {job.id} its tenant would be past what is guaranteed to it in the tier {job.tier}"
    taken = {index: given[attempt.attempt_id] for index, attempt in enumerate(running) if attempt.attempt_id in given}
    if not all(claim.reaches(running[index]) for index in taken) or not claim.may_lose(list(taken), taken):
        return f"what is borrowed in the tier {job.tier} is no longer as it was"
    return None
