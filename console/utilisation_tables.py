"""The tables of the page of utilisation: accounts, groups, and the entries of the ledger."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from console.figure_charts import change, change_of
from console.tables import Column, Table
from console.utilisation_charts import MEANINGS, AccountTime
from control.ledger.read import LedgerEntryRecord
from ledger.accounts import Account
from muster.domain.amounts import gpu_hours

MS_PER_MINUTE: Final = 60_000
_WITHOUT: Final[Mapping[str, str]] = {
    "cause": "no cause",
    "rack": "unknown",
    "site": "unknown",
    "model": "unknown",
    "tenant": "not assigned",
    "tier": "not assigned",
    "class": "not assigned",
}
"""Group → what time without one is called."""


def accounts_table(*, is_compared: bool) -> Table[AccountTime]:
    meaning = Column[AccountTime]("meaning", "Meaning", lambda each: MEANINGS[Account(each.name)])
    columns = (
        Column[AccountTime]("account", "Account", lambda each: each.name),
        *_times(is_compared=is_compared),
        meaning,
    )
    return Table("accounts", columns, "-gpu_hours")


def groups_table(by: str, names: Mapping[str, str], *, is_compared: bool) -> Table[AccountTime]:
    """Return the table of groups. ``names``: of tenants, by id, where they are the groups."""

    def name_of(each: AccountTime) -> str:
        return names.get(each.name, each.name) if each.name else _WITHOUT[by]

    group = Column[AccountTime]("group", by.capitalize(), name_of)
    return Table("groups", (group, *_times(is_compared=is_compared)), "-gpu_hours")


def entries_table(job_names: Mapping[str, str]) -> Table[LedgerEntryRecord]:
    def minutes(each: LedgerEntryRecord) -> float:
        return each.num_ms / MS_PER_MINUTE

    columns = (
        Column[LedgerEntryRecord]("hour", "Hour", lambda each: each.hour),
        Column[LedgerEntryRecord]("account", "Account", lambda each: each.account),
        Column[LedgerEntryRecord]("cause", "Cause", lambda each: each.cause),
        Column[LedgerEntryRecord]("job", "Job", lambda each: each.job_id),
        Column[LedgerEntryRecord](
            "job_name", "Job", lambda each: job_names.get(each.job_id or ""), is_shown=False, is_sortable=False
        ),
        Column[LedgerEntryRecord]("gpu_minutes", "GPU-minutes", minutes, is_number=True),
        Column[LedgerEntryRecord]("revision", "State", lambda each: each.revision),
        Column[LedgerEntryRecord]("evidence", "Evidence", lambda each: each.evidence, is_sortable=False),
    )
    return Table("entries", columns, "-hour")


def change_words(each: AccountTime) -> str:
    return change(each.share, each.before_share, "") or "–"


def _times(*, is_compared: bool) -> tuple[Column[AccountTime], ...]:
    def before(each: AccountTime) -> Decimal | None:
        return None if each.before_ms is None else gpu_hours(each.before_ms)

    return (
        Column("gpu_hours", "GPU-hours", lambda each: gpu_hours(each.num_ms), is_number=True),
        Column("share", "Share", lambda each: each.share, is_number=True),
        Column("before", "Before", before, is_number=True, is_shown=is_compared),
        Column(
            "change",
            "Change",
            lambda each: change_of(each.share, each.before_share, ""),
            is_number=True,
            is_shown=is_compared,
        ),
    )
