"""Repairs that a rule starts: the remedy that is due, by the agent of the GPU's host, as far as the policy lets it.

The work is found from the database, so the next round carries on a round that was cut short, and any number of
processes may run. Each start is one unit under the locks of the host's GPUs and the breaker's row, and decides again
there. A GPU whose repair failed or timed out is QUARANTINED again, and the next remedy of its ladder is due. Where a
GPU needs a person, one incident is open for as long; no person's ticket is started. While the policy names no verb (the
default), rules start nothing, and an incident opens after ``attention.remedy_due_after_s``. One opens then too for a
GPU that is SUSPECT with a due remedy, and for a GPU that a rule may repair and does not.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, and_, or_, select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.fleet.gpu_locks import lock_gpus
from control.fleet.overrides import taken_out
from control.health.capacity import admit_takings
from control.health.cases import cases_of
from control.health.judge import policy_version
from control.health.remedy_context import around_of, node_repair
from control.health.repair_orders import lock_host, verbs_of
from control.health.repairs import begin_repair, report_repairs
from control.health.transitions import make_audited
from control.incidents import incidents
from control.policy.policies import active_policy
from health.remedy.remedy import Remedy, named, remedy_of
from health.remedy.remedy_start import needs_person, overdue_for_person, waits_for
from health.standing import interventions
from health.standing.gpu_case import RULE, GpuCase
from muster.db.models import Gpu, Incident
from muster.domain.evidence.findings import Severity
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.evidence.repairs import HOST_SCOPE
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import Standing
from muster.domain.times import to_ms

FIND: Final = declare_action("judge.find_repairs")
START: Final = declare_action("judge.start_repair")
REQUEST: Final = declare_action("judge.request_repair")
KIND: Final = IncidentKind.REPAIR_DUE
BATCH: Final = 200


def start_repairs_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Start repairs that are due, the longest quarantined first, and keep the incidents. Return how many were started.

    One that fails does not stop the others: its fault is raised after all have had their turn.
    """
    with units.read() as session:
        policy = active_policy(session)
        asked_about = set(session.scalars(_open_incidents()))
        overdue_since = units.clock() - timedelta(seconds=policy.attention.remedy_due_after_s)
        may_start = bool(policy.health.repair.starts_by_rule)
        out = session.scalars(_to_be_checked(overdue_since, may_start=may_start)).all()
    left = sorted(asked_about.difference(out))
    due, told = list[GpuUuid](), list[GpuUuid](map(GpuUuid, left))
    for some in _batches(out):
        by_rule, changed = _find(units, principal, some, asked_about)
        due += by_rule
        told += changed
    works: list[Callable[[], int]] = [lambda uuid=uuid: _start(units, principal, uuid) for uuid in due]  # type: ignore[misc]  # bound at once
    works += [lambda some=some: _keep_incidents(units, principal, some) for some in _batches(told)]  # type: ignore[misc]  # bound at once
    return _all_of(works)


def _all_of(works: Sequence[Callable[[], int]]) -> int:
    faults: list[Exception] = []
    total = 0
    for work in works:
        try:
            total += retrying(work)
        except Exception as fault:  # noqa: BLE001  # raised below, whatever it is
            faults.append(fault)
    if faults:
        raise faults[0]
    return total


def _to_be_checked(overdue_since: datetime, *, may_start: bool) -> Select[GpuUuid]:
    """Return the query of GPUs that a rule may repair now, or that may wait for a person."""
    is_overdue = and_(
        Gpu.standing.in_((Standing.QUARANTINED, Standing.SUSPECT)),
        or_(Gpu.standing_since.is_(None), Gpu.standing_since <= overdue_since),
    )
    is_out = Gpu.standing == Standing.QUARANTINED
    query = select(Gpu.uuid).where(or_(is_out, is_overdue) if may_start else is_overdue)
    return query.order_by(Gpu.standing_since.nulls_first(), Gpu.uuid)


def _open_incidents() -> Select[str]:
    return select(Incident.subject_id).where(Incident.kind == KIND, Incident.closed_at.is_(None))


def _batches(uuids: Sequence[GpuUuid]) -> Iterator[Sequence[GpuUuid]]:
    return (uuids[start : start + BATCH] for start in range(0, len(uuids), BATCH))


def _find(
    units: UnitOfWorkFactory, principal: Principal, uuids: Sequence[GpuUuid], checked: set[str]
) -> tuple[list[GpuUuid], list[GpuUuid]]:
    """Return, without a lock, the GPUs that a rule may repair, and the GPUs whose incident is to open or close."""
    with units.begin(principal, FIND, quiet=True) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        found = {gpu.uuid: gpu for gpu in unit.session.scalars(select(Gpu).where(Gpu.uuid.in_(uuids)))}
        words = _remedies_to_request(unit, [found[uuid] for uuid in uuids if uuid in found])
        may_start = active_policy(unit.session).health.repair.starts_by_rule
        by_rule = [uuid for uuid, (remedy, _) in words.items() if remedy is not None and remedy.verb in may_start]
    changed = [uuid for uuid, (_, why) in words.items() if (why is not None) != (uuid in checked)]
    return by_rule, changed


def _remedies_to_request(unit: UnitOfWork, gpus: Sequence[Gpu]) -> dict[GpuUuid, tuple[Remedy | None, str | None]]:
    """Return each GPU's due remedy, and why a person has to act; None where a rule may, or a person took it out."""
    whole_policy, now_ms = active_policy(unit.session), to_ms(unit.now)
    policy, after_ms = whole_policy.health, round(whole_policy.attention.remedy_due_after_s * 1000)
    verbs = verbs_of(unit, [gpu.node_id for gpu in gpus])
    cases, uuids = cases_of(unit, gpus), [gpu.uuid for gpu in gpus]
    held = set(unit.session.scalars(select(Gpu.uuid).where(Gpu.uuid.in_(uuids), taken_out(unit.now))))
    asks = bool(policy.repair.starts_by_rule)
    found = dict[GpuUuid, tuple[Remedy | None, str | None]]()
    for gpu in gpus:
        case = cases[gpu.uuid]
        remedy = remedy_of(case, verbs[gpu.node_id], now_ms, policy)
        why = needs_person(case, remedy, now_ms, policy) if asks else None
        why = why or overdue_for_person(case, remedy, now_ms, policy, after_ms=after_ms)
        found[gpu.uuid] = remedy, why if gpu.uuid not in held else None
    return found


def _start(units: UnitOfWorkFactory, principal: Principal, uuid: GpuUuid) -> int:
    with units.begin(principal, START) as unit:
        lock_host(unit, uuid)
        gpu = unit.session.get_one(Gpu, uuid)
        if gpu.standing is not Standing.QUARANTINED:
            return 0
        policy = active_policy(unit.session).health
        case = cases_of(unit, [gpu])[uuid]
        remedy = remedy_of(case, verbs_of(unit, [gpu.node_id])[gpu.node_id], to_ms(unit.now), policy)
        if remedy is None or needs_person(case, remedy, to_ms(unit.now), policy) is not None:
            return 0
        around = around_of(unit, gpu, remedy, policy)
        if waits_for(case, remedy, around, to_ms(unit.now), policy) is not None:
            return 0
        _begin(unit, gpu, case, remedy, policy)
        return 1


def _begin(unit: UnitOfWork, gpu: Gpu, case: GpuCase, remedy: Remedy, policy: HealthPolicy) -> None:
    reason = f"due by rule: {remedy.text}"
    group, now_ms = remedy.fault_group, to_ms(unit.now)
    move = interventions.start_repair(case, group, actor=RULE, reason=reason, now_ms=now_ms, policy=policy)
    if remedy.verb in HOST_SCOPE:
        admit_takings(unit, [node_repair(unit, gpu)], policy)  # it has its place, as ``waits_for`` found under the lock
    repair = begin_repair(unit, gpu, remedy.action, group, reason, remedy.verb)
    report_repairs(unit, gpu, policy)
    detail = {
        "repair_id": repair.id,
        "repair_action": remedy.action,
        "fault_group": group,
        "verb": remedy.verb,
        "requested_by": remedy.requested_by,
        "evidence_ids": list(remedy.evidence_ids),
    }
    make_audited(unit, gpu, move, "gpu.repair.start", policy, policy_version(unit), reason=reason, **detail)


def _keep_incidents(units: UnitOfWorkFactory, principal: Principal, uuids: Sequence[GpuUuid]) -> int:
    """Keep incidents about exactly the GPUs among ``uuids`` that only a person can return to service. Return 0."""
    with units.begin(principal, REQUEST, quiet=True) as unit:
        gpus = lock_gpus(unit, uuids)
        words = _remedies_to_request(unit, gpus)
        standing = {found.subject_id: found for found in incidents.open_about(unit, KIND, list(uuids))}
        for gpu in gpus:
            (remedy, why), incident = words[gpu.uuid], standing.get(gpu.uuid)
            if why is not None and incident is None:
                _ask(unit, gpu, remedy, why + _because(unit, gpu, remedy))
            elif why is None and incident is not None:
                incidents.close_incident(unit, incident, reason=_over(gpu))
    return 0


def _because(unit: UnitOfWork, gpu: Gpu, remedy: Remedy | None) -> str:
    """Return as text what keeps a rule from starting the remedy; nothing where no rule may start it."""
    policy = active_policy(unit.session).health
    if remedy is None or remedy.verb not in policy.repair.starts_by_rule:
        return ""
    around = around_of(unit, gpu, remedy, policy)
    waits = waits_for(cases_of(unit, [gpu])[gpu.uuid], remedy, around, to_ms(unit.now), policy)
    return "" if waits is None else f": {waits}"


def _over(gpu: Gpu) -> str:
    return "no person is asked for it any more" if gpu.standing is Standing.QUARANTINED else f"it is {gpu.standing}"


def _ask(unit: UnitOfWork, gpu: Gpu, remedy: Remedy | None, why: str) -> None:
    is_suspect = gpu.standing is Standing.SUSPECT
    first = f"Quarantine it first: `muster gpu quarantine {gpu.uuid}`. " if is_suspect else ""
    payload: dict[str, Any] = {
        "severity": Severity.CONDEMNING.name.lower(),
        "gpu_uuid": gpu.uuid,
        "serial": gpu.serial,
        "node_id": gpu.node_id,
        "quarantined_at": None if gpu.standing_since is None else gpu.standing_since.isoformat(),
        "remedy": None if remedy is None else remedy.action,
        "fault_group": None if remedy is None else remedy.fault_group,
        "evidence_ids": [] if remedy is None else list(remedy.evidence_ids),
        "to_do": f"`muster gpu show {gpu.uuid}` has the evidence. {first}`muster gpu repair {gpu.uuid} start` begins "
        "what is due, `muster burnin run` proves the GPU as it is, `muster gpu dismiss` says that its evidence is "
        "wrong.",
    }
    due = "needs a person" if remedy is None else f"needs a person for its {named(remedy.action)}"
    incidents.open_incident(unit, KIND, "gpu", gpu.uuid, f"{gpu.uuid} {due}: {why}", payload)
