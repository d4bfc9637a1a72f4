"""The keeper of roll-ups: every five minutes the health and the capacity of each group of GPUs, a row each.

PostgreSQL counts the GPUs that are alike on each node, in one statement that locks no row; ``health.rollup`` computes
the figures, and one statement stores them. A round belongs to five minutes of the clock and is stored once, whichever
process takes it. A row shows one instant: what a GPU did between two rounds is in its own history and in the events.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import ARRAY, TIMESTAMP, Integer, Row, Text, bindparam, delete, exists, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from health.rollup.rollup import Alike, GpuKind, Rollup, Use, kind_of, rollups_by
from health.standing.admission import AdmissionFacts
from health.standing.standing import is_reclaimable_only
from muster.db.models import Gpu, HealthRollup, RollupRound
from muster.db.queries.admission import FACTS_BY_GROUP
from muster.domain.gpu.rollup_groups import GroupKind, RoundStep
from muster.domain.ids import NodeId, TenantId
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from muster.domain.states import Standing
from muster.domain.times import to_ms

TAKE: Final = declare_action("rollups.take")
EVERY: Final = timedelta(minutes=5)
ROUNDS_A_SWEEP: Final = 20
"""The most rounds that one transaction deletes. One is made in five minutes."""
NO_KEY: Final = ""
"""The key of GPUs without a rack or a site, and of the fleet."""
_PRINCIPAL: Final = system_principal("rollups")
_PERIODS: Final = ((RoundStep.DAY, timedelta(days=1)), (RoundStep.HOUR, timedelta(hours=1)))
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_ROLLUP_NUMBERS: Final = (
    *("score_tenths", "mean_tenths", "worst", "p10", "num_nodes", "num_gpus", "num_healthy", "num_admitted"),
    *("num_in_use", "num_reserved", "num_free"),
)
_ARRAYS: Final = ("kind", "key", "standings", *_ROLLUP_NUMBERS)
_STORE: Final = text(
    "INSERT INTO health_rollups (at, kind, key, standings, " + ", ".join(_ROLLUP_NUMBERS) + ")\n"
    "SELECT :at, kind, key, CAST(standings AS jsonb), " + ", ".join(_ROLLUP_NUMBERS) + "\n"
    "FROM unnest(" + ", ".join(f":{name}" for name in _ARRAYS) + ") AS new (" + ", ".join(_ARRAYS) + ")"
).bindparams(
    bindparam("at", type_=TIMESTAMP(timezone=True)),
    *(bindparam(name, type_=ARRAY(Integer if name in _ROLLUP_NUMBERS else Text)) for name in _ARRAYS),
)


class _Group(NamedTuple):
    """The first columns of ``FACTS_BY_GROUP``: the keys of a GPU's groups."""

    node_id: NodeId
    rack: str | None
    cohort_key: str
    site: str | None
    model: str
    tenant_id: TenantId | None


_KEY_OF: Final[Mapping[GroupKind, Callable[[_Group], str | None]]] = {
    GroupKind.NODE: lambda group: group.node_id,
    GroupKind.RACK: lambda group: group.rack or NO_KEY,
    GroupKind.COHORT: lambda group: group.cohort_key,
    GroupKind.SITE: lambda group: group.site or NO_KEY,
    GroupKind.MODEL: lambda group: group.model,
    GroupKind.TENANT: lambda group: group.tenant_id,
    GroupKind.FLEET: lambda _: NO_KEY,
}
_NUM_KEYS: Final = len(_Group._fields)


def take_once(units: UnitOfWorkFactory) -> bool:
    """Take the round of the present five minutes. Return False where it is taken already, or there is no GPU yet.

    A round of nothing would count as the first of its hour and day, and no later one of these would stay.
    """
    with units.read() as session:
        has_gpus = session.scalar(select(exists().where(Gpu.standing != Standing.RETIRED)))
        if not has_gpus or session.get(RollupRound, beginning_of(units.clock(), EVERY)) is not None:
            return False
    with units.begin(_PRINCIPAL, TAKE, quiet=True) as unit:
        at = beginning_of(unit.now, EVERY)
        if not _claim(unit, at):
            return False
        policy = active_policy(unit.session)
        rows = unit.session.execute(FACTS_BY_GROUP, {"now": unit.now}).all()
        _store(unit, at, _counted(rows, policy, unit.now))
        _drop_nodes_before(unit, at)
    return True


def drop_expired(unit: UnitOfWork, _batch: int) -> int:
    """Delete rounds past their time by the policy, at most ``ROUNDS_A_SWEEP``. Return how many."""
    kept = active_policy(unit.session).retention
    ages = {
        RoundStep.FIVE_MINUTES: timedelta(hours=kept.rollups_recent_hours),
        RoundStep.HOUR: timedelta(days=kept.rollups_hourly_days),
        RoundStep.DAY: timedelta(days=kept.rollups_days),
    }
    is_over = or_(*((RollupRound.step == step) & (RollupRound.at < unit.now - age) for step, age in ages.items()))
    query = select(RollupRound.at).where(is_over).order_by(RollupRound.at).limit(ROUNDS_A_SWEEP)
    doomed = unit.session.scalars(query).all()
    if doomed:
        of_any_kind = HealthRollup.kind.in_(tuple(GroupKind))  # the index begins with it
        unit.session.execute(delete(HealthRollup).where(of_any_kind, HealthRollup.at.in_(doomed)))
        unit.session.execute(delete(RollupRound).where(RollupRound.at.in_(doomed)))
    return len(doomed)


def beginning_of(moment: datetime, period: timedelta) -> datetime:
    """Return when the period (UTC) that ``moment`` is in began."""
    return moment - (moment - _EPOCH) % period


def _claim(unit: UnitOfWork, at: datetime) -> bool:
    """Begin the round. Return False where another process has: it waits for that one's commit, or its end without."""
    values = {"at": at, "taken_at": unit.now, "step": _step_of(unit, at), "has_nodes": True}
    begun = insert(RollupRound).values(values).on_conflict_do_nothing().returning(RollupRound.at)
    return unit.session.execute(begun).first() is not None


def _step_of(unit: UnitOfWork, at: datetime) -> RoundStep:
    """Return the longest period of which it is the first round: after an outage the next one is the hour's."""
    for step, period in _PERIODS:
        began = beginning_of(at, period)
        if not unit.session.scalar(select(exists().where(RollupRound.at >= began, RollupRound.at < began + period))):
            return step
    return RoundStep.FIVE_MINUTES


def _counted(rows: Sequence[Row[Any]], policy: Policy, now: datetime) -> list[tuple[_Group, Alike]]:
    """Return the counted GPUs with their groups. A fleet has few kinds of GPUs: each is judged once."""
    kinds: dict[tuple[Any, ...], GpuKind] = {}
    fleet = []
    for row in rows:
        facts = row[_NUM_KEYS:-1]
        kind = kinds.get(facts)
        if kind is None:
            kind = kinds[facts] = _kind(row, policy, now)
        fleet.append((_Group(*row[:_NUM_KEYS]), Alike(row[0], kind, row[-1])))
    return fleet


def _kind(row: Any, policy: Policy, now: datetime) -> GpuKind:
    since = row.standing_since
    is_young = since is not None and is_reclaimable_only(row.standing, to_ms(since), to_ms(now), policy.health)
    facts = AdmissionFacts(
        row.standing,
        row.contact,
        is_cordoned=row.is_cordoned,
        is_assigned=row.is_assigned,
        is_burning_in=row.is_burning_in,
        is_reported=row.is_reported,
        is_reclaimable_only=is_young,
        is_mig_enabled=row.is_mig_enabled,
        override=row.override,
    )
    return kind_of(facts, row.score, policy.tiers.values(), has_hold=row.has_hold)


def _store(unit: UnitOfWork, at: datetime, fleet: Sequence[tuple[_Group, Alike]]) -> None:
    rows = list(_rows(fleet))
    if rows:
        arrays = zip(_ARRAYS, zip(*rows, strict=True), strict=True)
        unit.session.execute(_STORE, {"at": at, **{name: list(values) for name, values in arrays}})


def _rows(fleet: Sequence[tuple[_Group, Alike]]) -> Iterator[tuple[str | int, ...]]:
    """Yield the values of ``_ARRAYS`` for each group."""
    for kind, key_of in _KEY_OF.items():
        for key, rollup in rollups_by((key_of(group), alike) for group, alike in fleet).items():
            standings = {standing.value: count for standing, count in sorted(rollup.standings.items())}
            yield (kind.value, key, json.dumps(standings), *_numbers(rollup))


def _numbers(rollup: Rollup) -> Iterable[int]:
    uses = rollup.uses
    return (
        *(rollup.score_tenths, rollup.mean_tenths, rollup.worst, rollup.p10),
        *(rollup.num_nodes, rollup.num_gpus, rollup.num_healthy, rollup.num_admitted),
        *(uses.get(use, 0) for use in (Use.IN_USE, Use.RESERVED, Use.FREE)),
    )


def _drop_nodes_before(unit: UnitOfWork, at: datetime) -> None:
    """Drop the rows by node of earlier rounds, except for the first of each hour: they are nine tenths of all rows.

    The last round's stay: a reader may be between two pages of them.
    """
    is_spent = (RollupRound.step == RoundStep.FIVE_MINUTES) & RollupRound.has_nodes & (RollupRound.at < at - EVERY)
    statement = update(RollupRound).where(is_spent).values(has_nodes=False).returning(RollupRound.at)
    spent = unit.session.scalars(statement.execution_options(synchronize_session=False)).all()
    if spent:
        of_nodes = (HealthRollup.kind == GroupKind.NODE) & HealthRollup.at.in_(spent)
        unit.session.execute(delete(HealthRollup).where(of_nodes))
