"""The planner's input from the rows of this world at one moment: fleet, queue, running attempts and holds.

``control.placement.scheduling`` reads the same from PostgreSQL.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from health.standing.admission import AdmissionFacts
from muster.domain.exit.causes import CAUSE_RULES, GOES_ON_THERE, HAD_TO_LEAVE, INTERRUPTIONS, Avoidance
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.lifecycle.model import AttemptLifecycle, JobLifecycle
from muster.domain.states import AttemptState, Contact, JobState, Standing
from scheduler.model import (
    ElasticGang,
    GpuView,
    Parts,
    Question,
    ReclaimLoss,
    ResumeHold,
    RunningAttempt,
    Shape,
    StandingReclaim,
    WaitingJob,
    Workload,
)
from simulator.world.rows import JobRow
from simulator.world.store import Store

_AVOID_LAST_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The planner's input. ``seen``: the jobs of the queue as they were."""

    question: Question
    seen: Mapping[JobId, JobLifecycle]
    at_ms: int


def take(store: Store, now_ms: int, contacts: Mapping[NodeId, Contact], patience_ms: int) -> Snapshot | None:
    """Return the snapshot; None if no job is pending, may grow or has a standing reclaim.

    ``patience_ms``: how long an evacuated or interrupted job waits for its own GPUs to be proved clean.
    """
    queued = [life for life in store.jobs.values() if life.state is JobState.QUEUED]
    promised = store.notices.holds()
    own = _own_holds(store)
    cleaning = {
        life.job_id
        for life in queued
        if life.job_id not in promised and _waits_for_its_own(store, life, now_ms - patience_ms, contacts)
    }
    queued = [life for life in queued if life.job_id not in cleaning]
    may_grow = not cleaning and _may_any_grow(store, now_ms)
    if not queued and not may_grow and not promised:
        return None
    workload = workload_of(store, now_ms, own, may_grow=may_grow, others_wait=bool(cleaning))
    num_held = {one.job_id: len(one.gpus) for one in own}
    queue = [_waiting(store, life, now_ms, num_held.get(life.job_id, 0)) for life in queued]
    question = Question(store.rules.policy, views_of(store, contacts), queue, workload)
    return Snapshot(question, {life.job_id: life for life in queued}, now_ms)


def views_of(store: Store, contacts: Mapping[NodeId, Contact]) -> list[GpuView]:
    """Return the GPUs; an unchanged one is the same object: hundreds of snapshots differ in a GPU or two."""
    rules, now_ms, known = store.rules, store.clock(), store.views
    worked_on = {one.node_id for one in store.windows() if one.starts_ms <= now_ms}
    views = []
    for node_id, part in store.gpus.items():
        contact, is_closed = contacts[node_id], node_id in worked_on or node_id in store.nodes_on_hold
        for slot, gpu in enumerate(part):
            is_cordoned = is_closed or not store.is_admitted[gpu]
            facts = _facts(store.cases[gpu].standing, contact, is_cordoned, gpu in store.holders, store.is_calm)
            view = known.get(gpu)
            if view is None or view.facts is not facts:
                path, cohort = rules.paths[node_id], rules.cohorts[node_id]
                view = known[gpu] = GpuView(gpu, node_id, slot, cohort, facts, path, rules.costs[node_id])
            views.append(view)
    return views


@cache
def _facts(*facts: *tuple[Standing, Contact, bool, bool, bool]) -> AdmissionFacts:
    """Return the facts; GPUs with equal ones share one object."""
    standing, contact, is_cordoned, is_held, is_calm = facts
    return AdmissionFacts(standing, contact, is_cordoned, is_held, override=Standing.HEALTHY if is_calm else None)


def workload_of(
    store: Store, now_ms: int, own: tuple[ResumeHold, ...] = (), *, may_grow: bool = False, others_wait: bool = False
) -> Workload:
    rules, live = store.rules, store.live_of_job.values()
    since_ms = now_ms - int(rules.policy.reclaim.window_s * 1000)
    closings: dict[NodeId, int] = {}
    for window in store.windows():
        closings[window.node_id] = min(window.closes_ms, closings.get(window.node_id, window.closes_ms))
    return Workload(
        now_ms=now_ms,
        running=tuple(_running(store, store.attempts[attempt_id], now_ms) for attempt_id in live),
        reclaims=tuple(_standing(store)),
        losses=tuple(_losses(store, now_ms, since_ms)),
        peak_gpus={TenantId(name): store.notices.peak_gpus(name, since_ms) for name in store.notices.holdings},
        tenancy=rules.tenancy,
        holds=own,
        cleaning=tuple(sorted(gpu for gpu, holder in store.holders.items() if holder in store.ended_ms)),
        may_grow=may_grow,
        others_wait=others_wait,
        maintenance_starts=closings,
        failures_per_gpu_hour=0.0 if store.is_calm else rules.failures_per_gpu_hour,
    )


def _running(store: Store, life: AttemptLifecycle, now_ms: int) -> RunningAttempt:
    row = store.rows[life.job_id]
    started_ms = store.started_ms(life)
    return RunningAttempt(
        attempt_id=life.attempt_id,
        job_id=life.job_id,
        tenant_id=TenantId(row.tenant),
        tier=row.tier,
        gpus=tuple(sorted(gpu for part in store.allocated[life.attempt_id].values() for gpu in part)),
        started_ms=now_ms if started_ms is None else started_ms,
        saved_ms=store.saved_ms.get(life.job_id),
        ends_ms=_ends_ms(row, life, now_ms if started_ms is None else started_ms),
        is_stopping=life.stop is not None or life.ending is not None,
        elastic=_elastic(store, row, life),
        requested=Shape(len(life.hosts), row.gpus_per_node, row.required_level),
    )


def _ends_ms(row: JobRow, life: AttemptLifecycle, started_ms: int) -> int | None:
    """Return the certain end, or None if the job continues on its good GPUs: no other job may count on them."""
    if life.stop is None:
        return started_ms + row.wall_time_ms + row.stop_grace_ms
    return None if life.stop.reason in GOES_ON_THERE else life.stop.deadline_ms


def _elastic(store: Store, row: JobRow, life: AttemptLifecycle) -> ElasticGang | None:
    if not row.is_elastic or life.state is not AttemptState.RUNNING or life.stop or life.ending:
        return None
    return ElasticGang(
        parts=tuple(store.allocated[life.attempt_id].items()),
        min_nodes=row.min_nodes,
        max_nodes=row.most_nodes,
        gpus_per_node=row.gpus_per_node,
        required_level=row.required_level,
        preferred_level=row.preferred_level,
        avoid_nodes=_at_fault(store, life.job_id),
        rule=row.placement,
    )


def _standing(store: Store) -> list[StandingReclaim]:
    standing = []
    for beneficiary, given in store.notices.holds().items():
        held = tuple(sorted(gpu for gpu, job_id in store.hold_of.items() if job_id == beneficiary))
        standing += [
            StandingReclaim(key, beneficiary, one.deadline_ms, held, one.keeps, one.is_delivered) for key, one in given
        ]
    return standing


def _losses(store: Store, now_ms: int, since_ms: int) -> list[ReclaimLoss]:
    """Return completed reclaims, and those whose hold has ended; standing ones are counted separately."""
    losses = []
    for tenant, _, notice in store.notices.lost(since_ms):
        is_counted = notice.settled_ms is not None or notice.hold_ended is not None
        if is_counted:
            losses.append(ReclaimLoss(TenantId(tenant), len(notice.gpus), notice.settled_ms or now_ms))
    return losses


def _own_holds(store: Store) -> tuple[ResumeHold, ...]:
    promised = store.notices.holds()
    held: dict[JobId, list[GpuUuid]] = {}
    for gpu, job_id in store.hold_of.items():
        if job_id not in promised:
            held.setdefault(job_id, []).append(gpu)
    return tuple(
        ResumeHold(job_id, tuple(sorted(gpus)), TenantId(store.rows[job_id].tenant), store.rows[job_id].tier)
        for job_id, gpus in held.items()
    )


def _may_any_grow(store: Store, now_ms: int) -> bool:
    if not store.cases.keys() - store.holders.keys() - store.is_out:
        return False
    since_ms = now_ms - store.rules.policy.elastic.grow_after_s * 1000
    for attempt_id in store.live_of_job.values():
        life = store.attempts[attempt_id]
        row = store.rows[life.job_id]
        started_ms = store.started_ms(life)
        has_room = row.is_elastic and len(life.hosts) < row.most_nodes and life.state is AttemptState.RUNNING
        if has_room and life.stop is None and started_ms is not None and started_ms <= since_ms:
            return True
    return False


def _waits_for_its_own(store: Store, job: JobLifecycle, since_ms: int, contacts: Mapping[NodeId, Contact]) -> bool:
    """Return whether its last attempt has just ended, and live hosts are still proving its GPUs clean."""
    last = _last(store, job.job_id)
    if last is None or last.ending is None or store.ended_ms.get(last.attempt_id, since_ms) <= since_ms:
        return False
    is_tied = store.rows[job.job_id].is_elastic or last.ending.cause in HAD_TO_LEAVE
    return is_tied and any(
        contacts[node_id] is Contact.LIVE and any(store.holders.get(gpu) == last.attempt_id for gpu in part)
        for node_id, part in store.allocated[last.attempt_id].items()
    )


def _last(store: Store, job_id: JobId) -> AttemptLifecycle | None:
    own = store.attempts_of.get(job_id)
    return store.attempts[own[-1]] if own else None


def _waiting(store: Store, job: JobLifecycle, now_ms: int, num_assigned: int) -> WaitingJob:
    row, last = store.rows[job.job_id], _last(store, job.job_id)
    keep: Parts = () if last is None else tuple(store.allocated[last.attempt_id].items())
    is_interrupted = last is not None and last.ending is not None and last.ending.cause in INTERRUPTIONS
    avoided = _at_fault(store, job.job_id)
    # GPUs that are held since an interruption are the ones it keeps; they do not change its size.
    num_assigned_nodes = 0 if is_interrupted else num_assigned // row.gpus_per_node
    firm_start, postponed = store.firm_starts.get(job.job_id, (None, None))
    waiting = WaitingJob(
        job_id=job.job_id,
        version=0,
        tier=row.tier,
        queued_ms=store.submitted_ms[job.job_id],
        nodes=num_assigned_nodes if row.min_nodes <= num_assigned_nodes <= row.most_nodes else row.nodes,
        gpus_per_node=row.gpus_per_node,
        # Avoiding every host would leave the job pending without end: then no host is avoided.
        avoid_nodes=avoided if len(store.gpus) - len(avoided) >= row.min_nodes else frozenset(),
        tenant_id=TenantId(row.tenant),
        required_level=row.required_level,
        preferred_level=row.preferred_level,
        keep=keep,
        min_nodes=row.min_nodes if row.is_elastic else None,
        max_nodes=row.most_nodes if row.is_elastic else None,
        expected_s=(row.wall_time_ms + row.stop_grace_ms) / 1000,
        overtaken_gpu_s=_passed_gpu_s(store, row, now_ms),
        rule=row.placement,
        firm_start=firm_start,
        postponed=postponed,
    )
    if last is not None and is_interrupted:
        return replace(waiting, interrupted_ms=store.ended_ms[last.attempt_id])
    return waiting


def _passed_gpu_s(store: Store, row: JobRow, now_ms: int) -> float:
    """Return the GPU-seconds that later jobs of its tier have run."""
    came_ms, passed = store.submitted_ms[row.job_id], 0.0
    for attempt_id, life in store.attempts.items():
        started_ms, other = store.started_ms(life), store.rows[life.job_id]
        if started_ms is None or other.tier != row.tier or store.submitted_ms[life.job_id] <= came_ms:
            continue
        num_gpus = sum(map(len, store.allocated[attempt_id].values()))
        passed += num_gpus * (store.ended_ms.get(attempt_id, now_ms) - started_ms) / 1000
    return passed


def _at_fault(store: Store, job_id: JobId) -> frozenset[NodeId]:
    """Return the hosts at fault in its last attempts that ended by a host's fault.

    If the faulty host of an attempt is unknown, all its hosts count.
    """
    nodes: Counter[NodeId] = Counter()
    own: list[AttemptId] = store.attempts_of.get(job_id, [])
    for attempt_id in own[-_AVOID_LAST_ATTEMPTS:]:
        life = store.attempts[attempt_id]
        avoid = Avoidance.NOTHING if life.ending is None else CAUSE_RULES[life.ending.cause].avoid
        if avoid is Avoidance.NOTHING:
            continue
        known = [part.node_id for part in life.hosts if part.is_at_fault]
        nodes.update(known or ([part.node_id for part in life.hosts] if avoid is Avoidance.NODE else []))
    return frozenset(nodes)
