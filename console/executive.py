"""The reads of the executive page: jobs, money, GPU time, capacity and objectives, over a stretch and before it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console.figure_charts import Compared, compared
from console.ranges import Stretch
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.health.rollup_reads import GroupRollup, RollupFilter, list_rollups
from control.ledger.figures import By
from control.ledger.fleet_time import FleetTime, fleet_time
from control.ledger.objective_reads import ObjectiveView, list_objectives
from control.ledger.spending import Payer, Spending, payers, spending
from ledger.accounts import Account
from ledger.bills import Sums, sums_by
from muster.domain.gpu.rollup_groups import GroupKind

_ONE: Final = Part(1)


@dataclass(frozen=True, slots=True)
class Period:
    """The fleet's time, and what tenants are charged for theirs."""

    time: FleetTime
    spent: Spending


@dataclass(frozen=True, slots=True)
class Health:
    """The fleet's health at the end of the stretch, and at its begin; None: none was recorded until then."""

    now: GroupRollup | None
    before: GroupRollup | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a payer is charged. ``department``: None: it belongs to no other. ``before``: None: it used nothing then."""

    name: str
    department: str | None
    now: Sums
    before: Sums | None


@dataclass(frozen=True, slots=True)
class AccountTime:
    """GPU time of an account. ``before``: its share of the period before; None: no time was counted then."""

    account: Account
    num_ms: int
    share: float
    before: float | None


@dataclass(frozen=True, slots=True)
class Board:
    """All that the page shows. ``durations``: by class."""

    success: Compared
    durations: Compared
    converging: Compared
    now: Period
    before: Period
    payers: Mapping[str, Payer]
    health: Health
    objectives: Sequence[ObjectiveView]

    @property
    def tenants(self) -> list[Cost]:
        """Each tenant that used GPUs, the dearest first."""
        earlier = dict(self.before.spent.by_tenant)
        return [
            Cost(self.payers[each].name, self.payers[each].department, own, earlier.get(each))
            for each, own in self.now.spent.by_tenant
        ]

    @property
    def departments(self) -> list[Cost]:
        """Each topmost tenant with all below it, the dearest first; empty where no tenant has one above it."""
        if all(each.department is None for each in self.payers.values()):
            return []
        earlier = dict(self._by_department(self.before.spent))
        return [Cost(name, None, own, earlier.get(name)) for name, own in self._by_department(self.now.spent)]

    @property
    def accounts(self) -> list[AccountTime]:
        """Each account with time, the largest first."""
        now, before = _by_account(self.now.time), _by_account(self.before.time)
        whole, whole_before = sum(now.values()), sum(before.values())
        found = [
            AccountTime(each, num_ms, num_ms / whole, before.get(each, 0) / whole_before if whole_before else None)
            for each, num_ms in now.items()
            if num_ms
        ]
        return sorted(found, key=lambda one: -one.num_ms)

    def _by_department(self, spent: Spending) -> list[tuple[str, Sums]]:
        known = self.payers
        return sums_by(
            spent.lines, lambda key: known[key.tenant_id].department or known[key.tenant_id].name, spent.decimals
        )


def board(unit: UnitOfWork, shown: Stretch) -> Board:
    """Return all that the page shows over a stretch of time."""
    now, before = (_period(unit, each) for each in (shown, shown.before))
    tenant_ids = {line.key.tenant_id for each in (now, before) for line in each.spent.lines}
    return Board(
        compared(unit, "job_success", shown, is_whole=True),
        compared(unit, "time_to_complete", shown, By.CLASS, is_whole=True),
        compared(unit, "convergence", shown, is_whole=True),
        now,
        before,
        payers(unit, tenant_ids),
        _health(unit, shown),
        list_objectives(unit),
    )


def _period(unit: UnitOfWork, shown: Stretch) -> Period:
    time = fleet_time(unit, shown.span)
    return Period(time, spending(unit, time.sums))


def _health(unit: UnitOfWork, shown: Stretch) -> Health:
    now, before = (
        next(iter(list_rollups(unit, RollupFilter(GroupKind.FLEET, at=at), _ONE)), None)
        for at in (shown.until, shown.since)
    )
    return Health(now, before)


def _by_account(time: FleetTime) -> dict[Account, int]:
    found: dict[Account, int] = {}
    for each in time.sums.sums:
        account = Account(each.values["account"])
        found[account] = found.get(account, 0) + each.num_ms
    return found
