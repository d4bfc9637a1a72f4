"""The breaker's account of capacity in the database: one row, whose lock orders all takings of all processes (I29).

Lock nodes and GPUs before it. Everything that a rule takes from new work is entered in the transaction that takes it.
``true_up_once`` enters what the account does not know: takings of a release that counted less, and ends of holds and
burn-ins that persons or agents brought about.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.health.breaker_incidents import BREAKER, report_waiting
from control.policy.policies import active_policy
from health.standing import breaker
from health.standing.breaker import BreakerState, FleetCounts, GpuPlace, Taking, Way
from health.standing.gpu_case import Move
from muster.db.models import Allocation, AllocationGpu, Breaker, BurnIn, Cordon, Gpu, Node
from muster.db.queries.effective_standing import cordon_stands
from muster.domain.ids import GpuUuid, NodeId, TenantId
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Principal
from muster.domain.states import AllocationState, BurnInState, Standing
from muster.domain.times import to_ms

NODE_FAULT: Final = "node_fault"
"""Reason code of the cordon that is a node hold."""
NODE_REPAIR: Final = "repair"
"""Reason code of the cordon of a repair that the whole host feels."""
BURNT_IN_WHILE_IN_SERVICE: Final = (Standing.PROBATION, Standing.HEALTHY, Standing.SUSPECT)
"""Standings in which a burn-in by rule keeps a GPU from work that it would take."""
TRUE_UP: Final = declare_action("judge.true_up_account")
_BY_RULE: Final = "system:"
"""Beginning of the name of every principal that is a part of the control plane."""
_OPEN_BURN_INS: Final = (BurnInState.ORDERED, BurnInState.RUNNING)


def admit_moves(unit: UnitOfWork, moves: Sequence[Move], policy: HealthPolicy) -> tuple[Move, ...]:
    """Return the moves that the breaker admits. Persons' moves always pass, and count nowhere."""
    row, state = locked_breaker(unit)
    counts = fleet_counts(unit.session, [move.gpu_uuid for move in moves])
    ruling = breaker.admit(moves, state, counts, policy, to_ms(unit.now))
    _store(row, ruling.state)
    report_waiting(unit, ruling.state, ruling.incident, [move.gpu_uuid for move in ruling.proposed], counts, policy)
    return ruling.allowed


def admit_takings(
    unit: UnitOfWork,
    takings: Sequence[Taking],
    policy: HealthPolicy,
    ended: Mapping[Way, Sequence[GpuUuid]] | None = None,
) -> frozenset[str]:
    """Return the subjects of the takings that the breaker admits. ``ended``: ways out that have ended before."""
    row, state = locked_breaker(unit)
    uuids = [uuid for each in takings for uuid in each.gpu_uuids]
    counts, now_ms = fleet_counts(unit.session, uuids), to_ms(unit.now)
    state = breaker.end_ways(state, ended or {}, counts, policy, now_ms)
    ruling = breaker.admit_takings(takings, state, counts, policy, now_ms)
    _store(row, ruling.state)
    waiting = [uuid for each in ruling.proposed for uuid in each.gpu_uuids]
    report_waiting(unit, ruling.state, ruling.incident, waiting, counts, policy)
    return frozenset(each.subject for each in ruling.allowed)


def full_scopes(unit: UnitOfWork, state: BreakerState, taking: Taking, policy: HealthPolicy) -> Sequence[str] | None:
    """Return the scopes in which ``taking`` has no place, or None. ``state``: of the breaker, which the unit holds."""
    counts = fleet_counts(unit.session, taking.gpu_uuids)
    return breaker.full_scopes(taking, state, counts, policy, to_ms(unit.now))


def locked_breaker(unit: UnitOfWork) -> tuple[Breaker, BreakerState]:
    """Lock the breaker's row until the commit, and return its newest state: processes count each other's takings."""
    row = unit.session.get_one(Breaker, BREAKER, with_for_update=True, populate_existing=True)
    return row, msgspec.convert(row.state, BreakerState)


def gpus_of(session: Session, node_ids: Sequence[NodeId]) -> dict[NodeId, tuple[GpuUuid, ...]]:
    """Return the GPUs of each node that are not retired, in id order."""
    query = select(Gpu.node_id, Gpu.uuid).where(Gpu.node_id.in_(node_ids), Gpu.standing != Standing.RETIRED)
    found = defaultdict[NodeId, list[GpuUuid]](list)
    for node_id, uuid in session.execute(query.order_by(Gpu.uuid)):
        found[node_id].append(uuid)
    return {node_id: tuple(found[node_id]) for node_id in node_ids}


def fleet_counts(session: Session, uuids: Sequence[GpuUuid]) -> FleetCounts:
    """Return the number of GPUs, the places of ``uuids``, and the tenants that hold them."""
    groups = session.execute(
        select(Node.rack, Gpu.cohort_key, func.count())
        .join(Gpu, Gpu.node_id == Node.id)
        .where(Gpu.standing != Standing.RETIRED)
        .group_by(Node.rack, Gpu.cohort_key)
    ).all()
    by_rack, by_cohort = Counter[str](), Counter[str]()
    for rack, cohort, count in groups:
        by_cohort[cohort] += count
        if rack is not None:
            by_rack[rack] += count
    held = AllocationGpu.state == AllocationState.ASSIGNED
    by_tenant = session.execute(
        select(Allocation.tenant_id, func.count())
        .join(AllocationGpu, AllocationGpu.allocation_id == Allocation.id)
        .where(held)
        .group_by(Allocation.tenant_id)
    ).all()
    holders: dict[GpuUuid, TenantId] = dict(
        session.execute(
            select(AllocationGpu.gpu_uuid, Allocation.tenant_id)
            .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
            .where(held, AllocationGpu.gpu_uuid.in_(uuids))
        ).all()
    )
    places = session.execute(
        select(Gpu.uuid, Node.rack, Gpu.cohort_key).join(Node, Node.id == Gpu.node_id).where(Gpu.uuid.in_(uuids))
    ).all()
    return FleetCounts(
        num_gpus=by_cohort.total(),
        by_rack=by_rack,
        by_cohort=by_cohort,
        by_tenant=dict(by_tenant),
        places={uuid: GpuPlace(rack, cohort, holders.get(uuid)) for uuid, rack, cohort in places},
    )


def true_up_once(units: UnitOfWorkFactory, principal: Principal) -> bool:
    """Make the account agree with the rows. Return whether it did not."""
    with units.read() as session:
        row = session.get_one(Breaker, BREAKER)
        state, policy = msgspec.convert(row.state, BreakerState), active_policy(session).health
        if _trued_up(session, state, policy, units.clock()) == state:
            return False

    def once() -> bool:
        with units.begin(principal, TRUE_UP, quiet=True) as unit:
            locked, before = locked_breaker(unit)
            after = _trued_up(unit.session, before, policy, unit.now)
            _store(locked, after)
            return after != before

    return retrying(once)


def _trued_up(session: Session, state: BreakerState, policy: HealthPolicy, now: datetime) -> BreakerState:
    facts = _facts(session, state, now)
    counts = fleet_counts(session, list(facts))
    return breaker.true_up(state, facts, counts, policy, to_ms(now))


def _facts(session: Session, state: BreakerState, now: datetime) -> dict[GpuUuid, dict[str, int]]:
    """Return the GPUs that rules keep from work by the rows, each with its ways and since when.

    Of GPUs that are QUARANTINED or in REPAIR these are the ones that the account has: persons take out others.
    """
    known_ms = {each.gpu_uuid: each.at_ms for each in state.quarantined if Way.STANDING in each.out_by()}
    found = defaultdict[GpuUuid, dict[str, int]](dict)
    stays_out = and_(Gpu.uuid.in_(known_ms), Gpu.standing.in_((Standing.QUARANTINED, Standing.REPAIR)))
    standings = select(Gpu.uuid, Gpu.standing_since).where(or_(Gpu.standing == Standing.SUSPECT, stays_out))
    for uuid, since in session.execute(standings):
        found[uuid][Way.STANDING] = known_ms.get(uuid) or (0 if since is None else to_ms(since))
    holds = (
        select(Gpu.uuid, Cordon.created_at)
        .join(Cordon, Cordon.node_id == Gpu.node_id)
        .where(Cordon.reason_code == NODE_FAULT, Cordon.released_at.is_(None), Gpu.standing != Standing.RETIRED)
    )
    for uuid, at in session.execute(holds):
        found[uuid][Way.NODE_HOLD] = to_ms(at)
    repairs = (
        select(Gpu.uuid, Cordon.created_at)
        .join(Cordon, Cordon.node_id == Gpu.node_id)
        .where(Cordon.reason_code == NODE_REPAIR, Cordon.owner.startswith(_BY_RULE, autoescape=True))
        .where(*cordon_stands(now), Gpu.standing != Standing.RETIRED)
    )
    for uuid, at in session.execute(repairs):
        found[uuid][Way.NODE_REPAIR] = to_ms(at)
    burn_ins = (
        select(BurnIn.gpu_uuid, BurnIn.ordered_at)
        .join(Gpu, Gpu.uuid == BurnIn.gpu_uuid)
        .where(BurnIn.state.in_(_OPEN_BURN_INS), BurnIn.ordered_by.startswith(_BY_RULE, autoescape=True))
        .where(Gpu.standing.in_(BURNT_IN_WHILE_IN_SERVICE))
    )
    for uuid, at in session.execute(burn_ins):
        found[uuid][Way.BURN_IN] = to_ms(at)
    return found


def _store(row: Breaker, state: BreakerState) -> None:
    stored: dict[str, Any] = msgspec.to_builtins(state)
    if stored != row.state:
        row.state = stored
