"""The tables of the page of costs: groups, jobs, idle time, credits, budgets, prices and their versions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final, Protocol

from console.figure_charts import change, change_of
from console.tables import Column, Table
from control.core.versions import VersionRecord
from control.ledger.budgets import Standing
from control.ledger.job_groups import JobGroup
from control.ledger.spending import Payer
from control.ledger.statements import Statement
from ledger.accounts import Account
from ledger.bills import Line, LineKey, Sums, sums, sums_by
from muster.domain.amounts import gpu_hours

JOBS_SHOWN: Final = 10


class By(StrEnum):
    """What costs are grouped by."""

    TENANT = "tenant"
    DEPARTMENT = "department"
    PROJECT = "project"
    CLASS = "class"
    MODEL = "model"
    TIER = "tier"
    ACCOUNT = "account"


OF_TENANTS: Final = frozenset({By.TENANT, By.DEPARTMENT})
"""Groups of the operator alone: a tenant is one of each."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The sums of a group or job. ``before``: of the period before; None: that period is not shown."""

    name: str
    now: Sums
    before: Sums | None

    @property
    def change(self) -> float | None:
        """The change as a part of the amount before; None: there was none."""
        return None if self.before is None else change_of(float(self.now.due), float(self.before.due), "money")


class Priced(Protocol):
    """Lines of GPU time with their prices, in a currency with so many decimals."""

    @property
    def lines(self) -> Sequence[Line]: ...
    @property
    def decimals(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Credit:
    """A line of which something is given back."""

    line: Line
    amount: Decimal


@dataclass(frozen=True, slots=True)
class Names:
    """What lines are grouped by, of jobs and tenants by id."""

    jobs: Mapping[str, JobGroup]
    payers: Mapping[str, Payer]

    def group(self, by: By) -> Callable[[LineKey], str]:
        """Return the function that gives the group of a line."""
        none, unknown = JobGroup("", ""), Payer("", None)
        found: dict[By, Callable[[LineKey], str]] = {
            By.TENANT: lambda key: self.payers.get(key.tenant_id, unknown).name or key.tenant_id,
            By.DEPARTMENT: lambda key: self._department(key.tenant_id),
            By.PROJECT: lambda key: self.jobs.get(key.job_id, none).project,
            By.CLASS: lambda key: self.jobs.get(key.job_id, none).job_class,
            By.MODEL: lambda key: key.model,
            By.TIER: lambda key: key.tier,
            By.ACCOUNT: lambda key: str(key.account),
        }
        return found[by]

    def _department(self, tenant_id: str) -> str:
        payer = self.payers.get(tenant_id, Payer(tenant_id, None))
        return payer.department or payer.name


def costs_by(group: Callable[[LineKey], str], now: Priced, before: Priced | None) -> list[Cost]:
    """Return the costs of each group next to those before, the dearest first."""
    none = sums((), now.decimals)
    found = dict(sums_by(now.lines, group, now.decimals))
    earlier = {} if before is None else dict(sums_by(before.lines, group, now.decimals))
    names = {**found, **earlier}
    return [Cost(name, found.get(name, none), None if before is None else earlier.get(name, none)) for name in names]


def change_words(each: Cost) -> str:
    return "–" if each.before is None else change(float(each.now.due), float(each.before.due), "money")


def idle_costs(found: Statement) -> list[Cost]:
    """Return what the idle time of each job cost."""
    idle = [line for line in found.charges.lines if line.key.account is Account.IDLE]
    return [Cost(name, own, None) for name, own in sums_by(idle, lambda key: key.job_id, found.charges.decimals)]


def credits_of(found: Statement) -> list[Credit]:
    return [
        Credit(line, line.credit(found.charges.decimals) or Decimal(0))
        for line in found.charges.lines
        if line.credited_ms
    ]


def groups_table(by: str, *, is_compared: bool) -> Table[Cost]:
    group = Column[Cost]("group", by.capitalize(), lambda each: each.name)
    return Table("groups", (group, *_amounts(), *_next_to(is_compared=is_compared)), "-due")


def tenants_table(payers: Mapping[str, Payer], currency: str) -> Table[Cost]:
    """Return the table of what tenants are charged, by their ids, before credits."""
    has_departments = any(each.department for each in payers.values())
    columns = (
        Column[Cost]("tenant", "Tenant", lambda each: payers[each.name].name),
        Column[Cost]("department", "Department", lambda each: payers[each.name].department, is_shown=has_departments),
        *_charges(currency),
    )
    return Table("tenants", columns, "-charged")


def departments_table(currency: str) -> Table[Cost]:
    """Return the table of what topmost tenants are charged with all below them, before credits."""
    return Table(
        "departments", (Column("department", "Department", lambda each: each.name), *_charges(currency)), "-charged"
    )


def jobs_table(names: Mapping[str, str]) -> Table[Cost]:
    own = tuple(
        Column[Cost](name, title, lambda _: None, is_number=True, is_sortable=False, is_written=False)
        for name, title in (
            ("in_all", "Spent in all"),
            ("per_step", "Per step"),
            ("per_tokens", "Per million tokens"),
            ("per_checkpoint", "Per checkpoint"),
        )
    )
    return Table("jobs", (*_job(names), *_amounts(), *own), "-due", JOBS_SHOWN)


def idle_table(names: Mapping[str, str]) -> Table[Cost]:
    return Table("idle", (*_job(names), _hours(), _due()), "-due")


def credits_table(names: Mapping[str, str]) -> Table[Credit]:
    columns = (
        Column[Credit]("job", "Job", lambda each: names.get(each.line.key.job_id)),
        Column[Credit]("job_id", "Job", lambda each: each.line.key.job_id, is_shown=False),
        Column[Credit]("account", "Why", lambda each: str(each.line.key.account)),
        Column[Credit]("gpu_hours", "GPU-hours", lambda each: gpu_hours(each.line.credited_ms), is_number=True),
        Column[Credit]("credit", "Credit", lambda each: each.amount, is_number=True),
    )
    return Table("credits", columns, "credit")


def budgets_table(names: Mapping[str, str], *, may_change: bool) -> Table[Standing]:
    columns = (
        Column[Standing]("tenant", "Tenant", lambda each: names.get(each.row.tenant_id, each.row.tenant_id)),
        Column[Standing]("amount", "Amount", lambda each: each.row.amount, is_number=True),
        Column[Standing]("spent", "Spent", lambda each: each.spent, is_number=True),
        Column[Standing]("share", "Share", lambda each: each.share, is_number=True),
        Column[Standing]("state", "State", state_of),
        Column[Standing]("action", "Once it is spent", lambda each: each.row.action.value),
        Column[Standing]("notices", "Notice at", lambda each: [str(one) for one in each.row.shares], is_sortable=False),
        Column[Standing]("until", "Until", lambda each: each.end),
        Column[Standing](
            "form", "Change", lambda _: None, is_number=True, is_shown=may_change, is_sortable=False, is_written=False
        ),
    )
    return Table("budgets", columns, "-share")


def state_of(each: Standing) -> str:
    """Return the state of a budget as text."""
    if each.fault:
        return each.fault
    if each.is_spent:
        return "spent"
    return "notice" if any(each.share >= one for one in each.row.shares) else "within it"


PRICES: Final = Table[dict[str, Any]](
    "prices",
    (
        Column("model", "Model", lambda card: card["model"]),
        Column("tier", "Tier", lambda card: card["tier"]),
        Column("from", "From", lambda card: card["begins_at"]),
        Column("price", "An hour of a GPU", lambda card: Decimal(card["price_per_gpu_hour"]), is_number=True),
    ),
    "model",
)
VERSIONS: Final = Table[VersionRecord](
    "versions",
    (
        Column("version", "Version", lambda each: each.version),
        Column("set_at", "Set", lambda each: each.created_at),
        Column("set_by", "By", lambda each: each.created_by),
        Column("reason", "Reason", lambda each: each.reason),
        Column("cards", "Cards", lambda each: len(each.document["cards"]), is_number=True),
    ),
    "-version",
)


def _job(names: Mapping[str, str]) -> tuple[Column[Cost], ...]:
    return (
        Column("job", "Job", lambda each: names.get(each.name, each.name)),
        Column("job_id", "Job", lambda each: each.name, is_shown=False),
    )


def _amounts() -> tuple[Column[Cost], ...]:
    return (
        _hours(),
        _charged(),
        Column("credits", "Credits", lambda each: each.now.credits, is_number=True),
        _due(),
        _unpriced(is_shown=False),
    )


def _next_to(*, is_compared: bool) -> tuple[Column[Cost], ...]:
    """Return the columns of the amount before and its change."""
    return (
        Column("before", "Before", lambda each: each.before and each.before.due, is_number=True, is_shown=is_compared),
        Column("change", "Change", lambda each: each.change, is_number=True, is_shown=is_compared),
    )


def _charges(currency: str) -> tuple[Column[Cost], ...]:
    """Return the columns of what is charged; CSV has the currency, too."""
    return (
        _hours(),
        _charged(),
        *_next_to(is_compared=True),
        Column("currency", "Currency", lambda _: currency, is_shown=False, is_sortable=False),
        _unpriced(is_shown=True),
    )


def _charged() -> Column[Cost]:
    return Column("charged", "Charged", lambda each: each.now.charged, is_number=True)


def _unpriced(*, is_shown: bool) -> Column[Cost]:
    title = "Unpriced GPU-hours"
    return Column("unpriced", title, lambda each: gpu_hours(each.now.unpriced_ms), is_number=True, is_shown=is_shown)


def _hours() -> Column[Cost]:
    return Column("gpu_hours", "GPU-hours", lambda each: gpu_hours(each.now.num_ms), is_number=True)


def _due() -> Column[Cost]:
    return Column("due", "Due", lambda each: each.now.due, is_number=True)
