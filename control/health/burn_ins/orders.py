"""Orders of burn-ins: by a person, or by a rule.

Rules order one for each GPU that is UNPROVEN, for each that is SUSPECT by evidence that only load can reproduce, and
for each with repetitions that need a diagnosis.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Exists, exists, func, or_, select, union_all

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.gpu_locks import lock_gpus
from control.fleet.inventory import in_force
from control.health import proposals
from control.health.burn_ins.read import BurnInRecord
from control.health.capacity import BURNT_IN_WHILE_IN_SERVICE, admit_takings
from control.health.cases import cases_of
from control.health.proposals import PROPOSED_AGAIN_MS, Proposal
from control.policy.policies import active_policy
from health.evidence.state import counts
from health.standing.account import Way
from health.standing.breaker import Taking
from health.standing.gpu_case import GpuCase, proofs_of
from health.standing.proof_under_load import untested
from muster.db.models import BurnIn, Gpu, GpuOverride, GpuStandingChange
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import NOTHING_RUNS, BurnInState, Standing
from muster.identity import new_id

ORDER: Final = declare_action("burn_in.order")
INTAKE: Final = declare_action("burn_in.intake")
OPEN_BURN_INS: Final = (BurnInState.ORDERED, BurnInState.RUNNING, BurnInState.MEASURED)
INTAKE_REASON: Final = "intake: the GPU is UNPROVEN"
DIAGNOSED: Final = BURNT_IN_WHILE_IN_SERVICE
"""The standings in which a repetition orders a burn-in."""
BATCH: Final = 200


def order(unit: UnitOfWork, gpu_uuid: GpuUuid, *, reason: str) -> BurnInRecord:
    """Order a burn-in for a person. It waits while an allocation holds the GPU, and then its host's agent gets it.

    Raises:
        NotFoundError: there is no such GPU.
        ConflictError: one is open already, or the GPU is in repair, retired or in MIG mode.
    """
    unit.principal.require(Permission.GPU_WRITE)
    gpus = lock_gpus(unit, [gpu_uuid])
    if not gpus:
        raise NotFoundError
    gpu = gpus[0]
    if gpu.standing in NOTHING_RUNS:
        message = f"{gpu.uuid} is {gpu.standing}"
        raise ConflictError(message, suggestion="Finish its repair, or reinstate it: a burn-in follows by itself.")
    if gpu.is_mig_enabled:
        message = f"{gpu.uuid} is in MIG mode, and a burn-in needs the whole GPU"
        raise ConflictError(message, suggestion="Turn MIG mode off first.")
    opened = unit.session.scalar(select(BurnIn).where(BurnIn.gpu_uuid == gpu.uuid, BurnIn.state.in_(OPEN_BURN_INS)))
    if opened is not None:
        message = f"{opened.id} of {gpu.uuid} is {opened.state} already"
        raise ConflictError(message, suggestion="Wait for its verdict.", burn_in_id=opened.id)
    made = add(unit, gpu, reason)
    unit.audit("burn_in.order", "gpu", gpu.uuid, reason=reason, detail={"burn_in_id": made.id})
    unit.session.flush()
    return record_of(made, BurnInRecord)


def order_intake_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Order one for each UNPROVEN GPU that has had none since it became so. Return how many.

    A person's override answers for a GPU while it is in force: jobs may run there, and no rule takes it from them.
    """

    def once() -> int:
        with units.begin(principal, INTAKE) as unit:
            unit.principal.require(Permission.SYSTEM_RUN)
            due = _unproven(unit)
            gpus = lock_gpus(unit, due) if due else []
            still_due = set(_unproven(unit, only=due)) if gpus else set()
            for gpu in gpus:
                if gpu.uuid in still_due:
                    add(unit, gpu, INTAKE_REASON)
            return len(still_due)

    return retrying(once)


def order_diagnoses(
    unit: UnitOfWork, gpus: Sequence[Gpu], requested: Mapping[GpuUuid, str], policy: HealthPolicy
) -> None:
    """Order one for each of ``gpus`` (locked) with a new repetition that asks for it (``health.burn_in.requested_by``).

    ``requested``: GPU → the finding as text. A finding that continues is no new one, so it asks once. Nothing is
    taken from the GPU: the burn-in waits while an allocation holds it. UNPROVEN GPUs get a burn-in anyway, and a
    person's override answers for its GPU. A burn-in that the circuit breaker does not admit is a proposal.
    """
    wanted = [gpu for gpu in gpus if gpu.uuid in requested and gpu.standing in DIAGNOSED and not gpu.is_mig_enabled]
    if not wanted:
        return
    uuids = [gpu.uuid for gpu in wanted]
    opened = select(BurnIn.gpu_uuid).where(BurnIn.gpu_uuid.in_(uuids), BurnIn.state.in_(OPEN_BURN_INS))
    overridden = select(Gpu.uuid).where(Gpu.uuid.in_(uuids), is_overridden(unit))
    taken = set(unit.session.scalars(union_all(opened, overridden)))
    due = [gpu for gpu in wanted if gpu.uuid not in taken]
    takings = [Taking(gpu.uuid, (gpu.uuid,), Way.BURN_IN) for gpu in due]
    admitted = admit_takings(unit, takings, policy) if takings else frozenset[str]()
    for gpu in due:
        if gpu.uuid in admitted:
            add(unit, gpu, f"diagnosis: {requested[gpu.uuid]}")
    held_back = {gpu.uuid: Proposal(requested[gpu.uuid]) for gpu in due if gpu.uuid not in admitted}
    proposals.keep(unit, Way.BURN_IN, uuids, held_back)


def order_proposed(unit: UnitOfWork, gpus: Sequence[Gpu], policy: HealthPolicy) -> None:
    """Order the burn-ins of ``gpus`` (locked, judged) that the circuit breaker held back, if it admits them now.

    A proposal ends where no finding asks for it any more, a proof has answered, or the GPU works no longer.
    """
    waiting = proposals.of_way(unit, Way.BURN_IN, [gpu.uuid for gpu in gpus])
    if not waiting:
        return
    unit.session.flush()
    some = [gpu for gpu in gpus if gpu.uuid in waiting]
    cases = cases_of(unit, some)
    still = [gpu for gpu in some if gpu.standing in DIAGNOSED and is_requested(cases[gpu.uuid], policy)]
    over = [gpu.uuid for gpu in some if gpu not in still]
    proposals.keep(unit, Way.BURN_IN, over, {})
    order_diagnoses(unit, still, {gpu.uuid: waiting[gpu.uuid] for gpu in still}, policy)
    again = unit.now + timedelta(milliseconds=PROPOSED_AGAIN_MS)
    for gpu in still:
        gpu.judge_at = again if gpu.judge_at is None else min(gpu.judge_at, again)


def is_requested(case: GpuCase, policy: HealthPolicy) -> bool:
    """Return whether a finding asks for a burn-in that no proof answers, or only load can reproduce one."""
    proofs, asking = proofs_of(case), policy.burn_in.requested_by
    wanted = (each for each in case.evidence if each.detector in asking and counts(each))
    return any(proofs is None or not proofs.answer(each) for each in wanted) or bool(untested(case, policy))


def order_proofs(unit: UnitOfWork, gpus: Sequence[Gpu], policy: HealthPolicy) -> None:
    """Order one for each of ``gpus`` (locked, judged) that is SUSPECT by evidence that only load can reproduce.

    A GPU that has one open already gets no second (``health.standing.proof_under_load``). The burn-in waits while an
    allocation holds the GPU, as in ``order_diagnoses``.
    """
    suspects = [gpu for gpu in gpus if gpu.standing is Standing.SUSPECT]
    if not suspects:
        return
    unit.session.flush()
    waiting = {uuid: untested(case, policy) for uuid, case in cases_of(unit, suspects).items()}
    words = {uuid: "; ".join(dict.fromkeys(each.summary for each in found)) for uuid, found in waiting.items() if found}
    order_diagnoses(
        unit, suspects, {uuid: f"it shows under load alone: {each}" for uuid, each in words.items()}, policy
    )


def is_overridden(unit: UnitOfWork) -> Exists:
    """Return the condition that a person's override answers for the GPU."""
    return exists().where(GpuOverride.gpu_uuid == Gpu.uuid, in_force(unit.now))


def _unproven(unit: UnitOfWork, only: list[GpuUuid] | None = None) -> list[GpuUuid]:
    again_s = active_policy(unit.session).health.burn_in.again_s
    since = select(func.max(GpuStandingChange.at)).where(GpuStandingChange.gpu_uuid == Gpu.uuid).scalar_subquery()
    could_not_run = BurnIn.state == BurnInState.ABANDONED
    had_one = exists().where(
        BurnIn.gpu_uuid == Gpu.uuid,
        or_(
            BurnIn.state.in_(OPEN_BURN_INS),
            (BurnIn.ordered_at >= since) & (~could_not_run | (BurnIn.ended_at > unit.now - timedelta(seconds=again_s))),
        ),
    )
    query = select(Gpu.uuid).where(
        Gpu.standing == Standing.UNPROVEN, ~Gpu.is_mig_enabled, ~had_one, ~is_overridden(unit)
    )
    if only is not None:
        query = query.where(Gpu.uuid.in_(only))
    return list(unit.session.scalars(query.order_by(Gpu.uuid).limit(BATCH)).all())


def add(unit: UnitOfWork, gpu: Gpu, reason: str, operation: dict[str, Any] | None = None) -> BurnIn:
    """Store an order for a locked GPU that has none open, with its event. ``operation``: it is repeated too."""
    made = BurnIn(
        id=new_id("burn_in"),
        gpu_uuid=gpu.uuid,
        node_id=gpu.node_id,
        state=BurnInState.ORDERED,
        reason=reason,
        ordered_by=unit.principal.name,
        ordered_at=unit.now,
        operation=operation,
    )
    unit.session.add(made)
    unit.emit("gpu.burn_in_ordered", "gpu", gpu.uuid, payload={"burn_in_id": made.id, "reason": reason})
    return made
