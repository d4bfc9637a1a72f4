"""Queries of cohorts: which GPUs may be mixed, their standings, and the spread of their figures."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import distinct, func, select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.cohort_spreads import Spread, spreads_of
from control.fleet.failure_rates import fleet_rate
from control.policy.policies import active_policy
from health.cohort.cohorts import attributes_of
from muster.db.models import Gpu
from muster.db.queries.effective_standing import effective_standing, is_cordoned
from muster.domain.errors import NotFoundError
from muster.domain.principals import Permission
from muster.domain.states import Standing
from scheduler.holds.spares import protected_tiers, spares_needed

READ: Final = declare_action("cohort.read")
MOST: Final = 1000
"""Maximum number of cohorts in an answer; a fleet has tens of them."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """One cohort. ``attributes``: the values that all its GPUs share; None for a value that is not known.

    ``standings``: its GPUs by their own standing; ``effective_standings``: as admission treats them. ``num_cordoned``:
    GPUs that a cordon of their own or of their node keeps out of new placements.
    ``num_spare_nodes``: how many of its nodes are kept free for gangs that lose some; None: none are kept for this
    cohort.
    """

    key: str
    attributes: Mapping[str, str | None]
    standings: Mapping[Standing, int]
    effective_standings: Mapping[Standing, int]
    num_cordoned: int
    num_nodes: int
    num_spare_nodes: int | None = None

    @property
    def num_gpus(self) -> int:
        return sum(self.standings.values())


@dataclass(frozen=True, slots=True)
class CohortDetail:
    """One cohort and its spreads. ``tolerance``: the part of the median by which a GPU's figure may differ from it."""

    cohort: Cohort
    spreads: Sequence[Spread]
    tolerance: float


def list_cohorts(unit: UnitOfWork) -> Sequence[Cohort]:
    """Return the cohorts in order of their keys."""
    unit.principal.require(Permission.GPU_READ)
    query = select(Gpu.cohort_key).distinct().order_by(Gpu.cohort_key).limit(MOST)
    return _cohorts(unit, unit.session.scalars(query).all())


def detail_of(unit: UnitOfWork, key: str) -> CohortDetail:
    """Return the cohort. Raises ``NotFoundError`` where no GPU is of it."""
    unit.principal.require(Permission.GPU_READ)
    found = _cohorts(unit, [key])
    if not found[0].standings:
        raise NotFoundError("no GPU is of that cohort")
    return CohortDetail(found[0], spreads_of(unit.session, key), active_policy(unit.session).health.cohort.tolerance)


def _cohorts(unit: UnitOfWork, keys: Sequence[str]) -> list[Cohort]:
    own: dict[str, Counter[Standing]] = {key: Counter() for key in keys}
    effective: dict[str, Counter[Standing]] = {key: Counter() for key in keys}
    cordoned: Counter[str] = Counter()
    of_these = Gpu.cohort_key.in_(keys)
    kinds = effective_standing(unit.now).label("effective"), is_cordoned(unit.now).label("is_cordoned")
    one = select(Gpu.cohort_key, Gpu.standing, *kinds).where(of_these).subquery()
    columns = one.c.cohort_key, one.c.standing, one.c.effective, one.c.is_cordoned
    counted = select(*columns, func.count()).group_by(*columns)
    for key, standing, as_admitted, has_cordon, count in unit.session.execute(counted):
        own[key][standing] += count
        effective[key][as_admitted] += count
        cordoned[key] += count * has_cordon
    nodes = select(Gpu.cohort_key, func.count(distinct(Gpu.node_id))).where(of_these).group_by(Gpu.cohort_key)
    num_nodes: dict[str, int] = dict(unit.session.execute(nodes).all())
    spares = _spares(unit, {key: (num_nodes.get(key, 0), own[key].total()) for key in keys})
    return [
        Cohort(
            key,
            attributes_of(key),
            standings=own[key],
            effective_standings=effective[key],
            num_cordoned=cordoned[key],
            num_nodes=num_nodes.get(key, 0),
            num_spare_nodes=spares.get(key),
        )
        for key in keys
    ]


def _spares(unit: UnitOfWork, sizes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Return the number of spares by cohort, from its number of nodes and GPUs.

    The planner keeps as many, or more where other tiers mix cohorts. The result is empty where all tiers with spares
    mix cohorts: then spares are counted over the mixed cohorts.
    """
    policy = active_policy(unit.session)
    if policy.recovery.spares.confidence is None or None not in protected_tiers(policy):
        return {}
    rate = fleet_rate(unit.session, policy)
    return {key: spares_needed(*size, rate, policy.recovery.spares) for key, size in sizes.items()}
