"""Input of the planner: queue, fleet and workload at one moment, for a cycle and for the plan of one job."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

from sqlalchemy.orm import Session

from control.attempts.run_history import with_predicted_ends, with_predictions
from control.fleet.failure_rates import fleet_rate
from control.fleet.inventory import count_gpus
from control.fleet.maintenance import maintenance_ends, maintenance_starts
from control.placement import elastic, preflight
from control.placement.fleet_views import placed_views
from control.placement.overtaken_work import with_overtaken_work
from control.placement.pending_jobs import waiting_jobs
from control.placement.queue_head import InThought
from control.placement.resuming_jobs import waiting_for_their_own
from control.placement.wait_records import turns
from control.placement.workload import beneficiaries, has_reclaim_holds, workload
from control.policy.policies import active_policy
from control.tenants.tenancy import used
from muster.domain.ids import JobId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.times import to_ms
from scheduler.model import Question, WaitingJob
from scheduler.queue.fair_share import by_turns
from scheduler.queue.order import in_order


def question(
    session: Session,
    now: datetime,
    unlooked: Collection[JobId] = (),
    *,
    alongside: InThought | None = None,
    is_what_if: bool = False,
) -> Question | None:
    """Return the planner's input; None: no job is pending, may grow or has a hold, so no plan could do anything.

    ``unlooked``: jobs that are placed without a preflight. ``alongside``: a job that is not submitted. It is in the
    queue if a cycle would read it. ``is_what_if``: there is always a result, since the caller adds jobs to it.
    """
    policy = active_policy(session)
    promised, own_holds = beneficiaries(session), elastic.own_holds(session)
    queue = waiting_jobs(session, promised, own_holds, alongside=alongside)
    cleaning = waiting_for_their_own(session, [job.job_id for job in queue], now).difference(promised)
    not_yet = cleaning | preflight.not_yet(session, policy, [job.job_id for job in queue], unlooked)
    queue = [job for job in queue if job.job_id not in not_yet]
    queue = with_predictions(session, with_overtaken_work(session, queue, now, policy), policy)
    may_grow = not not_yet and elastic.may_any_grow(session, now, policy)
    if not (queue or may_grow or is_what_if or has_reclaim_holds(session)):
        return None
    running = workload(
        session,
        now,
        policy,
        elastic=elastic.elastic_gangs(session),
        own_holds=own_holds,
        may_grow=may_grow,
        others_wait=bool(not_yet),
    )
    rate = 0.0 if policy.recovery.spares.confidence is None else fleet_rate(session, policy)
    running = replace(
        running,
        maintenance_starts=maintenance_starts(session, now),
        maintenance_ends=maintenance_ends(session, now),
        failures_per_gpu_hour=rate,
    )
    if queue:
        running = with_predicted_ends(session, running, policy)
    if _has_to_share(queue):
        running = replace(running, tenancy=replace(running.tenancy, used=used(session, now, policy)))
    return Question(policy, placed_views(session, now, policy), queue, running)


def _has_to_share(queue: Sequence[WaitingJob]) -> bool:
    """Return whether two tenants have pending jobs in one tier, so that their past use matters."""
    asking = {(job.tier, job.tenant_id) for job in queue}
    return len(asking) > len({tier for tier, _ in asking})


def queue_in_order(session: Session, now: datetime) -> list[WaitingJob]:
    """Return QUEUED jobs as the next cycle tries them, by the newest turns, without jobs too far back."""
    policy = active_policy(session)
    queue = waiting_jobs(session, beneficiaries(session), elastic.own_holds(session))
    queue = with_predictions(session, with_overtaken_work(session, queue, now, policy), policy)
    ordered = in_order(queue, policy, to_ms(now), count_gpus(session))
    return by_turns(ordered, turns(session, [job.job_id for job in ordered]), policy)


def why_not_planned(session: Session, now: datetime, job_id: JobId) -> WaitReason:
    """Return why a QUEUED job is not in the planner's input."""
    if waiting_for_their_own(session, [job_id], now):
        return WaitReason.CLEANING
    is_unseen = bool(preflight.not_yet(session, active_policy(session), [job_id], ()))
    return WaitReason.PREFLIGHT if is_unseen else WaitReason.FAR_BEHIND
