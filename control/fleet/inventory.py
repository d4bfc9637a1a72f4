"""The fleet as the planner sees it, enrolment of hosts, overrides by persons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import SCHEDULER_CHANNEL, UnitOfWork, declare_action
from control.policy import cohorts
from control.policy.policies import active_policy
from health.cohort.cohorts import Attribute
from health.standing.admission import AdmissionFacts
from health.standing.standing import is_reclaimable_only
from muster.db.models import Gpu, GpuOverride, GpuStandingChange, Node, NodeContactChange
from muster.db.queries.admission import FACTS, FACTS_OF_FEW
from muster.db.queries.effective_standing import override_stands
from muster.domain.errors import ConflictError
from muster.domain.gpu.cohort_attributes import ENROLLED
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Permission
from muster.domain.states import Contact, Standing
from muster.domain.times import to_ms
from muster.identity import new_id
from scheduler.planner import GpuView

ENROL: Final = declare_action("node.enrol")
OVERRIDE: Final = declare_action("gpu.override")
READ: Final = declare_action("fleet.read")


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """One GPU as its host claims it at enrolment."""

    uuid: GpuUuid
    slot_index: int
    model: str
    memory_bytes: int
    compute_capability: str
    driver_version: str
    serial: str | None = None
    is_simulated: bool = False

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """Attributes that a policy's cohorts may use; its agent reports others later."""
        return {name: getattr(self, name) for name in ENROLLED}


def gpu_views(
    session: Session, now: datetime, policy: HealthPolicy, *, only: Sequence[GpuUuid] | None = None
) -> list[GpuView]:
    """Return each GPU with the facts that admission needs, by rack; one query, a row a GPU."""
    query = FACTS if only is None else FACTS_OF_FEW.where(Gpu.uuid.in_(only))
    now_ms = to_ms(now)
    known: dict[tuple[object, ...], AdmissionFacts] = {}
    return [_view(row, _known_facts(known, row, now_ms, policy)) for row in session.execute(query, {"now": now})]


def _known_facts(
    known: dict[tuple[object, ...], AdmissionFacts], row: Any, now_ms: int, policy: HealthPolicy
) -> AdmissionFacts:
    """Return one object for all GPUs of equal facts: a fleet has few kinds of them, and a cycle reads 100,000 GPUs."""
    since = row.standing_since if row.standing is Standing.PROBATION else None
    said = (row.standing, row.contact, row.is_cordoned, row.is_assigned, row.is_burning_in, row.is_reported)
    key = (*said, row.is_mig_enabled, row.override, since)
    facts = known.get(key)
    if facts is None:
        facts = known[key] = facts_of(row, now_ms, policy)
    return facts


def facts_of(row: Any, now_ms: int, policy: HealthPolicy) -> AdmissionFacts:
    """Return the facts that a row of ``FACTS`` states at ``now_ms``."""
    return AdmissionFacts(
        standing=row.standing,
        contact=row.contact,
        is_cordoned=row.is_cordoned,
        is_assigned=row.is_assigned,
        is_burning_in=row.is_burning_in,
        is_reported=row.is_reported,
        is_reclaimable_only=_is_reclaimable_only(row, now_ms, policy),
        is_mig_enabled=row.is_mig_enabled,
        override=None if row.override is None else Standing(row.override),
    )


def _is_reclaimable_only(row: Any, now_ms: int, policy: HealthPolicy) -> bool:
    if row.standing is not Standing.PROBATION or row.standing_since is None:
        return False
    return is_reclaimable_only(row.standing, to_ms(row.standing_since), now_ms, policy)


def _view(row: Any, facts: AdmissionFacts) -> GpuView:
    path = () if row.rack is None else (row.rack,)
    return GpuView(row.uuid, row.node_id, row.slot_index, row.cohort_key, facts, path=path)


def enrol_node(
    unit: UnitOfWork,
    name: str,
    gpus: Sequence[GpuInventory],
    *,
    address: str,
    rack: str | None = None,
    is_simulated: bool = False,
) -> NodeId:
    """Enrol a host with its GPUs, each UNPROVEN. Enrolling the same name again returns the node as it is.

    Raises:
        ConflictError: a UUID already belongs to another node.
    """
    unit.principal.require(Permission.NODE_WRITE)
    existing = unit.session.scalar(select(Node).where(Node.name == name))
    if existing is not None:
        return existing.id
    taken = unit.session.scalars(select(Gpu.uuid).where(Gpu.uuid.in_([gpu.uuid for gpu in gpus]))).all()
    if taken:
        message = f"these GPUs belong to another node already: {', '.join(taken)}"
        raise ConflictError(message)
    node_id = NodeId(new_id("node"))
    unit.session.add(
        Node(
            id=node_id,
            name=name,
            contact=Contact.LOST,
            address=address,
            num_gpus=len(gpus),
            is_simulated=is_simulated,
            rack=rack,
            created_at=unit.now,
        )
    )
    unit.session.flush()
    unit.session.add(NodeContactChange(node_id=node_id, at=unit.now, contact=Contact.LOST))
    add_gpus(unit, node_id, gpus)
    uuids = [gpu.uuid for gpu in gpus]
    payload = {"name": name, "num_gpus": len(gpus), "gpus": uuids, "simulated": is_simulated}
    unit.emit("node.enrolled", "node", node_id, payload=payload)
    unit.audit("node.enrol", "node", node_id, detail={"name": name, "gpus": uuids})
    return node_id


def add_gpus(unit: UnitOfWork, node_id: NodeId, gpus: Sequence[GpuInventory]) -> None:
    """Add GPUs that no node has, each UNPROVEN. The caller leaves the trace."""
    unit.principal.require(Permission.NODE_WRITE)
    cohorts.hold_policy(unit.session)
    key_of = cohorts.keying(unit.session, active_policy(unit.session).health.cohort)
    for gpu in gpus:
        _enrol_gpu(unit, node_id, gpu, key_of(gpu.attributes))


def _enrol_gpu(unit: UnitOfWork, node_id: NodeId, gpu: GpuInventory, cohort: str) -> None:
    unit.session.add(
        Gpu(
            uuid=gpu.uuid,
            node_id=node_id,
            slot_index=gpu.slot_index,
            serial=gpu.serial,
            model=gpu.model,
            memory_bytes=gpu.memory_bytes,
            compute_capability=gpu.compute_capability,
            driver_version=gpu.driver_version,
            standing=Standing.UNPROVEN,
            is_simulated=gpu.is_simulated,
            cohort_key=cohort,
        )
    )
    unit.session.flush()
    unit.session.add(
        GpuStandingChange(
            gpu_uuid=gpu.uuid, target=Standing.UNPROVEN, at=unit.now, reason="enrolled", actor=unit.principal.name
        )
    )


def override_standing(
    unit: UnitOfWork,
    gpus: Sequence[GpuUuid],
    standing: Standing,
    *,
    until: datetime,
    reason: str,
    evacuates: JobId | None = None,
) -> int:
    """Set a person's standing for GPUs until a stated time; one that stood before ends. Return how many.

    An empty selection is none (I24). ``evacuates``: the job that has to leave, for the event.
    """
    unit.principal.require(Permission.GPU_WRITE)
    chosen = select(Gpu.uuid).where(Gpu.uuid.in_(gpus)).order_by(Gpu.uuid)
    known = unit.session.scalars(chosen.with_for_update(key_share=True)).all()
    for uuid in known:
        end_overrides(unit, uuid)
        override_id = new_id("override")
        unit.session.add(
            GpuOverride(
                id=override_id,
                gpu_uuid=uuid,
                standing=standing,
                reason=reason,
                actor=unit.principal.name,
                until=until,
                created_at=unit.now,
            )
        )
        payload = {
            "override_id": override_id,
            "standing": standing,
            "until": until.isoformat(),
            "reason": reason,
            "evacuates": evacuates,
        }
        unit.emit("gpu.overridden", "gpu", uuid, payload=payload)
        unit.audit("gpu.override", "gpu", uuid, reason=reason, detail=payload)
    unit.wake(SCHEDULER_CHANNEL)
    return len(known)


def end_overrides(unit: UnitOfWork, uuid: GpuUuid) -> Sequence[GpuOverride]:
    """End the overrides of a GPU that are in force now, and return them.

    The caller holds the GPU, and leaves the trace.
    """
    query = select(GpuOverride).where(GpuOverride.gpu_uuid == uuid, in_force(unit.now))
    ended = unit.session.scalars(query.order_by(GpuOverride.created_at, GpuOverride.id)).all()
    for override in ended:
        override.ended_at = unit.now
    return ended


def in_force(now: datetime) -> ColumnElement[bool]:
    """Return the condition on an override in force."""
    return and_(*override_stands(now))


def count_gpus(session: Session) -> int:
    return session.scalar(select(func.count()).select_from(Gpu)) or 0
