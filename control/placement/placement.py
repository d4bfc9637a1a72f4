"""Placement: the queue and fleet that the planner reads, and the one transaction that makes a plan true.

The commit locks the job and the GPUs in id order and checks admission *again* (I3), and for a job that requires a place
whether the hosts still are one. The snapshot's values no longer count. The partial unique indexes make a double holding
impossible in any case (I1, I2).
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from control.attempts.attempts import step_job, wake
from control.attempts.mapping import job_request
from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.inventory import facts_of
from control.fleet.node_places import path_of
from control.placement import holds
from control.placement.residency_holds import checkpoint_refusal_of
from control.tenants.guarantees import CHANGED, Guarantees
from control.tenants.quotas import quota_refusal
from health.cohort.cohorts import may_be_mixed
from health.standing.admission import Refusal, refusal_of
from muster.db.models import Job
from muster.db.queries import gang_rows, gangs
from muster.db.queries.assignments import ASSIGNED_ONCE
from muster.db.queries.gang_places import places_of
from muster.db.queries.residency import residency_of_tenant
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import AllocationId, AttemptId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle import job as jobs
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission
from muster.domain.residency import ANY
from muster.domain.states import JobState
from muster.domain.times import to_ms
from muster.identity import new_id
from scheduler.model import Resized, Swap
from scheduler.planner import Placement
from scheduler.solve.required_place import HostsThere, broken_by, required_place

PLACE: Final = declare_action("placement.place")
NOTE_WAITING: Final = declare_action("placement.note_waiting")
RENDEZVOUS_PORTS: Final = range(20_000, 30_000)


class PlacementLostError(ConflictError):
    """The snapshot no longer holds: another commit was first. The next cycle plans again."""

    code, status, title = "placement_lost", 409, "The fleet has changed since the plan was made"


def place(unit: UnitOfWork, placement: Placement, policy: Policy, *, planned_under: Guarantees) -> AttemptId:
    """Commit one gang whole (I5): attempt with its fence, hosts, allocation, wake-ups.

    ``planned_under``: the guarantees that the plan kept free (``control.tenants.guarantees``).

    Raises:
        NotFoundError: there is no such job.
        PlacementLostError: the job or a GPU is no longer as the plan saw it. For a GPU of a large gang that another
            attempt holds, it is raised when the unit ends.
    """
    unit.principal.require(Permission.SYSTEM_RUN)
    locked = gangs.lock(unit.session, placement.job_id, placement.parts, unit.now)
    job, kinds = locked.job, locked.kinds
    if job is None:
        raise NotFoundError
    if job.state is not JobState.QUEUED or job.version != placement.version:
        message = f"{job.id} is {job.state} now"
        raise PlacementLostError(message)
    if planned_under != locked.guarantees:
        raise PlacementLostError(CHANGED)
    num_gpus = sum(len(part) for _, part in placement.parts)
    _require_there(num_gpus, kinds, policy.homogeneity(job.tier))
    _require_size(job, placement)
    _require_admitted(unit, job, kinds, policy)
    _require_place(unit, job, placement, policy, has_residency=locked.of_job.has_residency)
    if locked.of_job.has_ceiling:
        _require_quota(unit, job, num_gpus)
    if locked.of_job.has_holds:
        holds.let_go(unit, job, holds.PLACED)
    step_job(unit, job, jobs.Placed(), policy)
    gang = _gang(job, placement, locked)
    # Whether another attempt holds a GPU of a large gang was not read: the unique index refuses it (I1).
    lost = PlacementLostError(f"one of the GPUs is no longer admitted: {Refusal.ASSIGNED}")
    unit.write_last(gang_rows.written(job, gang, unit.now), refusals={ASSIGNED_ONCE: lost})
    _report(unit, job, gang, placement.swap)
    return gang.attempt_id


def _require_there(num_gpus: int, kinds: Sequence[gangs.Kind], homogeneity: Collection[str] | None) -> None:
    """Check that each GPU is on its node, and all are of one cohort as the job's tier requires (I4)."""
    is_there = sum(kind.num_gpus for kind in kinds) == num_gpus
    if not is_there or not may_be_mixed((kind.cohort_key for kind in kinds), homogeneity):
        message = "the GPUs are no longer where they were, or no longer one cohort"
        raise PlacementLostError(message)


def _require_size(job: Job, placement: Placement) -> None:
    """Check that the job may have this number of hosts (I5)."""
    if len(placement.parts) not in job_request(job).shape.sizes:
        message = f"{len(placement.parts)} hosts are no size of {job.id}"
        raise PlacementLostError(message)


def _require_admitted(unit: UnitOfWork, job: Job, kinds: Sequence[gangs.Kind], policy: Policy) -> None:
    """Check I3 and I4 at the moment of commit, under locks."""
    tier, now_ms = policy.tier(job.tier), to_ms(unit.now)
    for kind in kinds:
        refusal = refusal_of(facts_of(kind, now_ms, policy.health), tier)
        if refusal is not None:
            message = f"{kind.uuid} is no longer admitted: {refusal}"
            raise PlacementLostError(message)
    if promised := [kind.uuid for kind in kinds if kind.is_on_hold]:
        message = f"{min(promised)} is held for another job"
        raise PlacementLostError(message)


def _require_place(unit: UnitOfWork, job: Job, placement: Placement, policy: Policy, *, has_residency: bool) -> None:
    """Check labels, required level and slices by the hosts' rows, and the residency rule of its tenant.

    A change of a host's place takes the locks of its GPUs first, and a change of the rule or of the tree of tenants
    that of the guarantees. ``has_residency``: some tenant has a rule; mostly none has, and then none is read.
    """
    residency = residency_of_tenant(unit.session, job.tenant_id) if has_residency else ANY
    barred = checkpoint_refusal_of(unit.session, job.id, job.tenant_id) if residency else None
    if barred is not None:
        raise PlacementLostError(barred)
    asked = required_place(job_request(job), policy.placement, len(placement.parts), residency.sites)
    if asked is None:
        return
    rows = places_of(unit.session, (node_id for node_id, _ in placement.parts), asked.names)
    hosts = [HostsThere(path_of(asked.levels, row.rack, row.labels), row.labels, row.ranks) for row in rows]
    broken = broken_by(asked, hosts)
    if broken is not None:
        raise PlacementLostError(broken)


def _require_quota(unit: UnitOfWork, job: Job, num_gpus: int) -> None:
    """Check I6 at the moment of commit."""
    refusal = quota_refusal(unit, job.tenant_id, job.tier, num_gpus)
    if refusal is not None:
        raise PlacementLostError(refusal)


def _gang(job: Job, placement: Placement, locked: gangs.Locked) -> gang_rows.Gang:
    return gang_rows.Gang(
        attempt_id=AttemptId(new_id("attempt")),
        allocation_id=AllocationId(new_id("allocation")),
        number=(locked.of_job.last_number or 0) + 1,
        fence=locked.fence,
        on_node_loss=job_request(job).on_node_loss or NodeLossRule.WAIT,
        address=locked.of_job.address,
        # A gang on one host meets on a port that the host itself finds free.
        ports=range(1) if len(placement.parts) == 1 else RENDEZVOUS_PORTS,
        parts=placement.parts,
    )


def _report(unit: UnitOfWork, job: Job, gang: gang_rows.Gang, swap: Swap | None) -> None:
    recovery = {} if swap is None else {"recovery": _recovery(job, swap)}
    unit.emit(
        "attempt.placed",
        "attempt",
        gang.attempt_id,
        tenant_id=job.tenant_id,
        payload={
            "job_id": job.id,
            "number": gang.number,
            "fence": gang.fence,
            "nodes": {node_id: list(part) for node_id, part in gang.parts},
            **recovery,
        },
    )
    for node_id, _ in gang.parts:
        wake(unit, node_id, gang.attempt_id)


def _recovery(job: Job, swap: Swap) -> dict[str, Any]:
    """Return how the job continues after a fault or maintenance: with its good hosts, or as a whole elsewhere."""
    level = job_request(job).topology.required
    if swap.kept_nodes and swap.resized is not None:
        return _resizing(swap, swap.resized)
    if swap.kept_nodes:
        words = f"{swap.kept_nodes} hosts keep their ranks, {len(swap.replaced)} were replaced"
    elif level is None:
        words = "no host could be kept: the whole gang is placed again"
    else:
        words = f"its {level} had no replacement in time: the whole gang is placed again"
    return {
        "kind": "hot_swap" if swap.kept_nodes else "placed_anew",
        "reason": words,
        "kept_nodes": swap.kept_nodes,
        "kept_gpus": swap.kept_gpus,
        "replaced": [{"from": old, "to": new} for old, new in swap.replaced],
    }


def _resizing(swap: Swap, resized: Resized) -> dict[str, Any]:
    """Return the record of a job that continues with another number of hosts: no swap, its ranks are assigned again."""
    words = f"continues with {resized.to_nodes} instead of {resized.from_nodes} hosts"
    new = f", {len(resized.joined)} are new" if resized.joined else ""
    return {
        "kind": "shrunk" if resized.to_nodes < resized.from_nodes else "grown",
        "reason": f"{words}: it keeps {swap.kept_nodes} of its hosts{new}",
        "from_nodes": resized.from_nodes,
        "to_nodes": resized.to_nodes,
        "kept_nodes": swap.kept_nodes,
        "kept_gpus": swap.kept_gpus,
        "left": list(resized.left),
        "joined": list(resized.joined),
        "replaced": [],
    }
