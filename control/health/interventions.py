"""Actions of persons on a GPU: dismiss evidence, repair, retire, reinstate. Each has reason, event and audit entry."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.evidence.dismissals import dismiss_row
from control.fleet import overrides
from control.fleet.gpu_locks import lock_gpus
from control.health import remedy_context
from control.health.capacity import admit_moves
from control.health.cases import cases_of
from control.health.judge import policy_version
from control.health.repair_orders import lock_host, require_host_ready, verb_for, verbs_of
from control.health.repairs import begin_repair, report_repairs
from control.health.transitions import apply_transition, make_audited
from control.policy.policies import active_policy
from health.remedy.fault_groups import fault_group_of
from health.remedy.remedy import Remedy, remedy_of
from health.standing import interventions
from health.standing.gpu_case import GpuCase, Move
from health.standing.interventions import RefusedMoveError
from muster.db.models import AllocationGpu, EvidenceRow, Gpu
from muster.domain.errors import ConflictError, NotFoundError, PreconditionFailedError
from muster.domain.evidence.repairs import HOST_SCOPE, RepairAction, RepairBy
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Permission
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.times import to_ms

T = TypeVar("T")
DISMISS: Final = declare_action("gpu.dismiss")
RETIRE: Final = declare_action("gpu.retire")
REINSTATE: Final = declare_action("gpu.reinstate")
START_REPAIR: Final = declare_action("gpu.repair.start")
END_REPAIR: Final = declare_action("gpu.repair.end")


@dataclass(frozen=True, slots=True)
class _Change:
    """One locked GPU and the person who acts on it."""

    gpu: Gpu
    case: GpuCase
    policy: HealthPolicy
    now_ms: int
    person: str


def dismiss(
    unit: UnitOfWork, uuid: GpuUuid, evidence_id: EvidenceId, *, reason: str, expected_version: int | None = None
) -> None:
    """Take evidence out of the judgement. A quarantine that stood on it alone ends. Twice is the same as once.

    Raises:
        NotFoundError: no such GPU, or no such evidence about it.
        PreconditionFailedError: the GPU is not at ``expected_version`` any more.
    """
    asked = _change_of(unit, uuid, expected_version)
    query = select(EvidenceRow).where(EvidenceRow.id == evidence_id, EvidenceRow.gpu_uuid == uuid)
    row = unit.session.scalar(query.with_for_update())
    if row is None:
        raise NotFoundError("there is no such evidence about this GPU")
    if row.dismissed_at is not None:
        return
    is_remembered = any(each.id == evidence_id for each in asked.case.evidence)
    move = None
    if is_remembered:
        ids = frozenset({evidence_id})
        move = _decided(
            lambda: interventions.dismiss(
                asked.case, ids, person=asked.person, reason=reason, now_ms=asked.now_ms, policy=asked.policy
            )
        )
    dismiss_row(unit, row, reason=reason)
    asked.gpu.judge_at = unit.now
    if move is not None:
        _make(unit, asked, move)


def retire(unit: UnitOfWork, uuid: GpuUuid, *, reason: str, expected_version: int | None = None) -> None:
    """Take the GPU out of service, from any standing; its running attempt is evacuated.

    Raises:
        NotFoundError, PreconditionFailedError: as for ``dismiss``.
        ConflictError: it is retired already.
    """
    asked = _change_of(unit, uuid, expected_version)
    move = _decided(lambda: interventions.retire(asked.case, person=asked.person, reason=reason, now_ms=asked.now_ms))
    _audited(unit, asked, move, "gpu.retire", reason)


def reinstate(unit: UnitOfWork, uuid: GpuUuid, *, reason: str, expected_version: int | None = None) -> None:
    """Return a retired GPU to UNPROVEN. Raises as ``retire`` does; ``ConflictError``: it is not retired."""
    asked = _change_of(unit, uuid, expected_version)
    move = _decided(
        lambda: interventions.reinstate(asked.case, person=asked.person, reason=reason, now_ms=asked.now_ms)
    )
    _audited(unit, asked, move, "gpu.reinstate", reason)


def start_repair(
    unit: UnitOfWork,
    uuid: GpuUuid,
    *,
    action: RepairAction | None,
    reason: str,
    fault_group: str | None = None,
    by: RepairBy = RepairBy.PERSON,
    expected_version: int | None = None,
) -> None:
    """Move a quarantined GPU to REPAIR. ``fault_group`` is the repair's purpose; by default its evidence names it.

    ``action`` None: the remedy that is due (``health.remedy.remedy``). ``by`` the agent of its host: it asks for the
    order and reports how it ended. A GPU that a person has taken out by an override is QUARANTINED first, by its own
    standing.

    Raises:
        NotFoundError, PreconditionFailedError: as for ``dismiss``.
        ValidationFailedError: an action for an agent that needs hands.
        ConflictError: it is not QUARANTINED, or a job still holds it, or its host where the verb affects all its GPUs;
            or no remedy is due and none is named.
    """
    if by is RepairBy.AGENT and (action is None or verb_for(action, by) in HOST_SCOPE):
        lock_host(unit, uuid)
    asked = _with_quarantine(unit, _change_of(unit, uuid, expected_version), reason)
    _require_free(unit, uuid)
    group = fault_group or fault_group_of(asked.case)
    if action is None:
        remedy = _due(unit, asked)
        action, group = remedy.action, fault_group or remedy.fault_group
    verb = verb_for(action, by)
    if verb is not None:
        require_host_ready(unit, asked.gpu, verb)
    move = _decided(
        lambda: interventions.start_repair(
            asked.case, group, actor=asked.person, reason=reason, now_ms=asked.now_ms, policy=asked.policy
        )
    )
    repair = begin_repair(unit, asked.gpu, action, group, reason, verb)
    report_repairs(unit, asked.gpu, asked.policy)
    detail = {"repair_id": repair.id, "repair_action": action, "fault_group": group, "verb": verb}
    _audited(unit, asked, move, "gpu.repair.start", reason, **detail)


def finish_repair(unit: UnitOfWork, uuid: GpuUuid, *, reason: str, expected_version: int | None = None) -> None:
    """End a repair that is done: the GPU is UNPROVEN, and its burn-in follows.

    Raises:
        NotFoundError, PreconditionFailedError: as for ``dismiss``.
        ConflictError: it is not in REPAIR, or its agent still reports the fault.
    """
    asked = _change_of(unit, uuid, expected_version)

    def decide() -> Move:
        move = interventions.finish_repair(asked.case, actor=asked.person, now_ms=asked.now_ms, text=reason)
        interventions.require_faults_over(asked.case, asked.policy)
        return move

    _audited(unit, asked, _decided(decide), "gpu.repair.finish", reason)


def fail_repair(unit: UnitOfWork, uuid: GpuUuid, *, reason: str, expected_version: int | None = None) -> None:
    """End a failed repair: back to QUARANTINED. Raises as ``retire`` does; ``ConflictError``: it is not in REPAIR."""
    asked = _change_of(unit, uuid, expected_version)
    move = _decided(lambda: interventions.fail_repair(asked.case, actor=asked.person, now_ms=asked.now_ms, text=reason))
    _audited(unit, asked, move, "gpu.repair.fail", reason)


def _change_of(unit: UnitOfWork, uuid: GpuUuid, expected_version: int | None) -> _Change:
    unit.principal.require(Permission.GPU_WRITE)
    gpus = lock_gpus(unit, [uuid])
    if not gpus:
        raise NotFoundError("there is no such GPU")
    gpu = gpus[0]
    if expected_version is not None and gpu.version != expected_version:
        raise PreconditionFailedError(current_version=gpu.version)
    policy = active_policy(unit.session).health
    return _Change(gpu, cases_of(unit, [gpu])[uuid], policy, to_ms(unit.now), unit.principal.name)


def _with_quarantine(unit: UnitOfWork, change: _Change, reason: str) -> _Change:
    """Replace a person's override by a quarantine: a repair ends what was known of the GPU, also the override."""
    uuid = change.gpu.uuid
    if change.gpu.standing in OUT_OF_SERVICE or not overrides.is_taken_out(unit, uuid):
        return change
    move = _decided(
        lambda: interventions.quarantine(change.case, person=change.person, reason=reason, now_ms=change.now_ms)
    )
    overrides.end(unit, uuid, reason=reason)
    _make(unit, change, move)
    unit.session.flush()
    return replace(change, case=cases_of(unit, [change.gpu])[uuid])


def _due(unit: UnitOfWork, change: _Change) -> Remedy:
    verbs = verbs_of(unit, [change.gpu.node_id])[change.gpu.node_id]
    remedy = remedy_of(change.case, verbs, change.now_ms, change.policy)
    if remedy is None:
        accepted = ", ".join(RepairAction)
        raise ConflictError(
            f"no remedy is due for {change.gpu.uuid}, which is {change.gpu.standing}",
            suggestion=f"Name an action: {accepted}. Only a QUARANTINED GPU is repaired.",
        )
    return remedy


def _require_free(unit: UnitOfWork, uuid: GpuUuid) -> None:
    found = remedy_context.holder(unit, AllocationGpu.gpu_uuid == uuid)
    if found is not None:
        raise ConflictError(
            f"{found.job_id} still holds {uuid}",
            suggestion="Wait until it has been evacuated, or cancel it.",
            job_id=found.job_id,
        )


def _decided(decide: Callable[[], T]) -> T:
    try:
        return decide()
    except RefusedMoveError as error:
        raise ConflictError(
            str(error), suggestion="Read the GPU again: `muster gpu show` lists what is possible."
        ) from error


def _audited(unit: UnitOfWork, change: _Change, move: Move, action: str, reason: str, **detail: Any) -> None:
    """Store a person's move and its audit entry. The breaker admits it, and counts the GPU as returned."""
    make_audited(unit, change.gpu, move, action, change.policy, policy_version(unit), reason=reason, **detail)


def _make(unit: UnitOfWork, change: _Change, move: Move) -> None:
    """Store a person's move. The breaker admits it, and counts the GPU as returned."""
    for allowed in admit_moves(unit, [move], change.policy):
        apply_transition(unit, change.gpu, allowed, policy_version(unit))
