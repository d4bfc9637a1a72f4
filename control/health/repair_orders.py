"""Repairs that the agent of a GPU's host does: ordered by a person or rule, given once, ended by the agent's report.

A report ends a repair by the same rules as a person does: done is UNPROVEN and a burn-in follows, failed is
QUARANTINED.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import select, update

from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.gpu_locks import lock_gpus
from control.health import remedy_context
from control.health.burn_ins.polling import poll_again_s
from control.health.cases import cases_of
from control.health.judge import policy_version
from control.health.transitions import make_audited
from control.policy.policies import active_policy
from health.standing import interventions
from health.standing.gpu_case import Move
from health.standing.interventions import RefusedMoveError
from muster.db.models import Cordon, Gpu, Node, Repair
from muster.domain.errors import (
    ConflictError,
    NotFoundError,
    UnauthenticatedError,
    UpgradeRequiredError,
    ValidationFailedError,
)
from muster.domain.evidence.repairs import HOST_SCOPE, VERB_OF_ACTION, RepairAction, RepairBy, RepairVerb, known_verbs
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Permission
from muster.domain.times import to_ms
from muster.wire.repair import REPAIR_PROTOCOL, RepairAnswer, RepairOrder, RepairPoll, RepairPollAnswer, RepairReport

POLL: Final = declare_action("repair.poll")
REPORT: Final = declare_action("repair.report")
AGAIN_S: Final = 10.0
"""Interval after a verb is done while its GPU still reports the fault: its next samples may show the end."""
LEAST_S: Final = 300.0
DIAGNOSIS_LEAST_S: Final = 1800.0
"""Least time that an order must have left when it is given, or half of all where that is less.

The longest time that NVIDIA names for `dcgmi diag -r 3` is half an hour.
"""
LOST: Final = "its agent asked again without a report of the result"


def verb_for(action: RepairAction, by: RepairBy) -> RepairVerb | None:
    """Return the verb; None: a person does it. Raises ValidationFailedError where no agent can."""
    if by is RepairBy.PERSON:
        return None
    if action not in VERB_OF_ACTION:
        accepted = ", ".join(VERB_OF_ACTION)
        raise ValidationFailedError.at("/action", "needs_hands", f"{action} needs hands; an agent does: {accepted}")
    return VERB_OF_ACTION[action]


def verbs_of(unit: UnitOfWork, nodes: Sequence[NodeId]) -> dict[NodeId, frozenset[RepairVerb]]:
    """Return the verbs that each node's agent may do, as far as this release knows them."""
    query = select(Node.id, Node.repair_verbs).where(Node.id.in_(nodes))
    return {node_id: known_verbs(verbs) for node_id, verbs in unit.session.execute(query)}


def lock_host(unit: UnitOfWork, uuid: GpuUuid) -> None:
    """Lock all GPUs of its node in id order, before any one of them: a placement locks them too before it reads."""
    node_id = select(Gpu.node_id).where(Gpu.uuid == uuid).scalar_subquery()
    lock_gpus(unit, unit.session.scalars(select(Gpu.uuid).where(Gpu.node_id == node_id)).all())


def require_host_ready(unit: UnitOfWork, gpu: Gpu, verb: RepairVerb) -> None:
    """Check that ``verb`` disturbs nothing on the host, and nothing there disturbs it. The caller holds the locks.

    Raises:
        ConflictError: a job or a burn-in is on the host, for verbs that all its GPUs feel; or another such repair.
    """
    if verb in HOST_SCOPE:
        _require_no_job(unit, gpu, verb)
        _require_no_burn_in(unit, gpu, verb)
    others = _open_of(gpu.node_id).where(Repair.gpu_uuid != gpu.uuid)
    for other in unit.session.scalars(others):
        if verb in HOST_SCOPE or other.verb in HOST_SCOPE:
            raise ConflictError(
                f"{other.id} ({other.verb}) of {other.gpu_uuid} is open on the same host",
                suggestion="Wait until it has ended: `muster gpu show` has its progress.",
            )


def poll(unit: UnitOfWork, request: RepairPoll) -> RepairPollAnswer:
    """Return the calling node's next order. A caller does nothing: an order that it has not reported has failed.

    A repair that it reported as done, whose fault it still reports, continues to wait, and delays no other GPU's
    repair.
    """
    node_id = _node_of(unit, request.protocol)
    _keep_verbs(unit, node_id, request.verbs)
    policy = active_policy(unit.session).health
    answer_again_s = poll_again_s(unit, policy.burn_in)
    found = unit.session.scalars(_open_of(node_id)).all()
    if not found:
        return RepairPollAnswer(poll_again_s=answer_again_s)
    gpus = {gpu.uuid: gpu for gpu in lock_gpus(unit, [row.gpu_uuid for row in found])}
    query = _open_of(node_id).where(Repair.gpu_uuid.in_(gpus)).with_for_update(of=Repair)
    rows = unit.session.scalars(query.execution_options(populate_existing=True)).all()
    for row in rows:
        if row.taken_at is not None and not _waits(row, request):
            _fail(unit, gpus[row.gpu_uuid], row, LOST, policy)
    for row in rows:
        if row.taken_at is None:
            why_not = _why_not_now(unit, gpus[row.gpu_uuid], row, policy)
            if why_not is None:
                return RepairPollAnswer(order=_give(unit, row, request, policy), poll_again_s=answer_again_s)
            _fail(unit, gpus[row.gpu_uuid], row, why_not, policy)
    return RepairPollAnswer(poll_again_s=answer_again_s)


def _keep_verbs(unit: UnitOfWork, node_id: NodeId, reported: Sequence[str]) -> None:
    """Store the verbs that the host's settings allow its agent: they limit proposed remedies and orders by rule."""
    verbs = sorted(set(reported))
    were = unit.session.scalars(select(Node.repair_verbs).where(Node.id == node_id)).one()
    if were == verbs:
        return
    change = update(Node).where(Node.id == node_id).values(repair_verbs=verbs)
    unit.session.execute(change.execution_options(synchronize_session=False))
    unit.emit("node.repair_verbs", "node", node_id, payload={"repair_verbs": verbs, "were": list(were)})


def _waits(row: Repair, request: RepairPoll) -> bool:
    """Return whether the agent reported its verb as done, as ``_finish`` noted, and still holds it."""
    return row.text is not None and row.id in request.waiting


def _why_not_now(unit: UnitOfWork, gpu: Gpu, row: Repair, policy: HealthPolicy) -> str | None:
    """Return why the order must not be given now: its time is too short, or it would disturb newer work on the host."""
    limit_s = policy.repair.limit_s(row.action)
    left_s = (row.began_at - unit.now).total_seconds() + limit_s
    least_s = DIAGNOSIS_LEAST_S if row.verb is RepairVerb.DIAGNOSIS else LEAST_S
    if left_s < min(least_s, limit_s / 2):
        return f"its agent asked for it {max(0.0, left_s):.0f} s before its time was over: too late to begin"
    if row.verb is None or row.verb not in HOST_SCOPE:
        return None
    try:
        _require_no_job(unit, gpu, row.verb)
    except ConflictError as conflict:
        return str(conflict)
    if row.cordon_id is None or unit.session.get_one(Cordon, row.cordon_id).released_at is not None:
        return f"the cordon that keeps work off its host was released, and a {row.verb} affects all of it"
    return None


def report(unit: UnitOfWork, repair_id: str, reported: RepairReport) -> RepairAnswer:
    """Store how it ended. A repeated report, and one of a repair that has ended otherwise, have no effect.

    Raises:
        NotFoundError: the node has no such repair.
        ValidationFailedError: a simulated verb for a real GPU or the other way round, or a reboot within the same boot.
    """
    node_id = _node_of(unit, reported.protocol)
    found = unit.session.execute(
        select(Repair.gpu_uuid, Gpu.node_id).join(Gpu, Gpu.uuid == Repair.gpu_uuid).where(Repair.id == repair_id)
    ).one_or_none()
    if found is None or found.node_id != node_id:
        raise NotFoundError
    (gpu,) = lock_gpus(unit, [found.gpu_uuid])
    row = unit.session.get_one(Repair, repair_id, with_for_update=True, populate_existing=True)
    if row.ended_at is not None or row.taken_at is None:
        return RepairAnswer(is_taken=False)
    _require_true(gpu, row, reported)
    policy = active_policy(unit.session).health
    if reported.outcome == "done":
        return _finish(unit, gpu, row, reported.text, policy)
    _fail(unit, gpu, row, reported.text, policy)
    return RepairAnswer(is_taken=True)


def _require_true(gpu: Gpu, row: Repair, reported: RepairReport) -> None:
    if reported.is_simulated != gpu.is_simulated:
        kind = "simulated" if gpu.is_simulated else "real"
        raise ValidationFailedError.at("/is_simulated", "other_kind", f"{gpu.uuid} is enrolled as {kind}")
    is_same_boot = reported.boot_id == row.taken_boot_id and not reported.is_simulated
    if row.verb is RepairVerb.REBOOT and reported.outcome == "done" and is_same_boot:
        message = "a reboot is done when its agent comes back in another boot, and this is the boot it was ordered in"
        raise ValidationFailedError.at("/boot_id", "same_boot", message)


def _give(unit: UnitOfWork, row: Repair, request: RepairPoll, policy: HealthPolicy) -> RepairOrder:
    row.taken_at, row.taken_boot_id = unit.now, request.boot_id
    unit.emit("gpu.repair_claimed", "gpu", row.gpu_uuid, payload=_payload(row, boot_id=request.boot_id))
    left = row.began_at + timedelta(seconds=policy.repair.limit_s(row.action)) - unit.now
    return RepairOrder(
        repair_id=row.id,
        gpu_uuid=row.gpu_uuid,
        verb=str(row.verb),
        deadline_s=max(0.0, left.total_seconds()),
    )


def _finish(unit: UnitOfWork, gpu: Gpu, row: Repair, words: str, policy: HealthPolicy) -> RepairAnswer:
    """End the repair as done. If its agent still reports the fault, the repair waits, and its words name the reason."""
    case = cases_of(unit, [gpu])[gpu.uuid]
    try:
        move = interventions.finish_repair(case, actor=unit.principal.name, now_ms=to_ms(unit.now), text=words)
        interventions.require_faults_over(case, policy)
    except RefusedMoveError as refused:
        waits = f"{words}; it waits: {refused}"
        if row.text != waits:
            row.text = waits
            unit.emit("gpu.repair_waits", "gpu", gpu.uuid, payload=_payload(row, reason=str(refused)))
        return RepairAnswer(is_taken=False, again_s=AGAIN_S)
    _make(unit, gpu, row, move, "gpu.repair.finish", policy)
    return RepairAnswer(is_taken=True)


def _fail(unit: UnitOfWork, gpu: Gpu, row: Repair, words: str, policy: HealthPolicy) -> None:
    case = cases_of(unit, [gpu])[gpu.uuid]
    move = interventions.fail_repair(case, actor=unit.principal.name, now_ms=to_ms(unit.now), text=words)
    _make(unit, gpu, row, move, "gpu.repair.fail", policy)


def _make(unit: UnitOfWork, gpu: Gpu, row: Repair, move: Move, action: str, policy: HealthPolicy) -> None:
    make_audited(unit, gpu, move, action, policy, policy_version(unit), reason=move.text, **_payload(row))


def _payload(row: Repair, **more: Any) -> dict[str, Any]:
    return {"repair_id": row.id, "verb": row.verb, **more}


def _open_of(node_id: NodeId) -> Any:
    """Return the query of open repairs by the agent of this node, the oldest first."""
    query = select(Repair).join(Gpu, Gpu.uuid == Repair.gpu_uuid)
    is_open = (Gpu.node_id == node_id) & Repair.ended_at.is_(None) & Repair.verb.is_not(None)
    return query.where(is_open).order_by(Repair.began_at, Repair.id)


def _require_no_job(unit: UnitOfWork, gpu: Gpu, verb: RepairVerb) -> None:
    found = remedy_context.holder(unit, Gpu.node_id == gpu.node_id)
    if found is not None:
        raise ConflictError(
            f"{found.job_id} holds {found.gpu_uuid}, and a {verb} affects every GPU of its host",
            suggestion="Drain the node first: `muster node drain`.",
            job_id=found.job_id,
        )


def _require_no_burn_in(unit: UnitOfWork, gpu: Gpu, verb: RepairVerb) -> None:
    found = remedy_context.burn_in(unit, remedy_context.running_on(gpu.node_id))
    if found is not None:
        message = f"{found.id} runs on {found.gpu_uuid}, and a {verb} affects every GPU of its host"
        raise ConflictError(message, suggestion="Wait for its verdict.", burn_in_id=found.id)


def _node_of(unit: UnitOfWork, protocol: int) -> NodeId:
    unit.principal.require(Permission.HOST_REPORT)
    if unit.principal.node_id is None:
        raise UnauthenticatedError
    if protocol != REPAIR_PROTOCOL:
        message = f"protocol {protocol} is not supported; this server supports {REPAIR_PROTOCOL}"
        raise UpgradeRequiredError(message, spoken=REPAIR_PROTOCOL)
    return unit.principal.node_id
