"""Page of utilisation: where GPU time went, by account and group, and what explains the newest losses."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.capacity_charts import REFRESH_S, Range
from console.rendering import pages_of
from console.session import Viewer, sees
from control.core.paging import Part, Span
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.read import GROUPED_BY, LedgerFilter, LedgerGroup, LedgerQuery, LedgerSum
from ledger.accounts import Account
from ledger.measures import LEDGER_FIGURES, Times, Window
from muster.domain.budgets import month_of
from muster.domain.principals import Permission
from muster.domain.times import to_ms

router = APIRouter()
GROUPS_SHOWN: Final = 50
LOSSES_SHOWN: Final = 50
LOSSES: Final = (Account.LOST, Account.REPLAYED, Account.RECLAIM_LOST, Account.SLOWED)
OF_TIMES: Final = frozenset({"allocation", "utilisation", "goodput", "availability", "idle_while_waiting"})
"""The figures that sums of accounts suffice for."""
Reader = Annotated[Viewer, sees(Permission.JOB_READ)]


class By(StrEnum):
    TENANT = "tenant"
    TIER = "tier"
    CLASS = "class"
    MODEL = "model"
    RACK = "rack"
    SITE = "site"
    CAUSE = "cause"


@dataclass(frozen=True, slots=True)
class UtilisationQuery:
    """``job``, ``account``, ``month``: of which entries are listed, as a line of a bill names them."""

    by: Annotated[By, Query()] = By.TENANT
    range: Annotated[Range, Query()] = Range.DAY
    job: Annotated[str | None, Query(max_length=128, pattern="^job_[0-9a-z]+$")] = None
    account: Annotated[Account | None, Query()] = None
    month: Annotated[str | None, Query(pattern="^20[0-9]{2}-(0[1-9]|1[0-2])$")] = None

    @property
    def accounts(self) -> tuple[Account, ...]:
        return LOSSES if self.account is None else (self.account,)

    def span(self, now: datetime) -> Span:
        if self.month is None:
            return self.range.span(now)
        start, end = month_of(datetime(int(self.month[:4]), int(self.month[5:]), 1, tzinfo=UTC))
        return Span(start, min(end, max(now, start)) - timedelta(microseconds=1))


Chosen = Annotated[UtilisationQuery, Depends()]


@router.get("/utilisation")
def utilisation_page(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Show where GPU time went. A tenant sees the time of its own attempts."""

    def read(unit: UnitOfWork) -> dict[str, Any]:
        span = chosen.span(unit.now)
        wanted = LedgerFilter(job_id=chosen.job)
        asked = LedgerQuery((LedgerGroup.ACCOUNT, LedgerGroup.TENANT), span, wanted, 100_000)
        found = ledger.sums(unit, asked)
        groups = ledger.sums(unit, replace(asked, groups=(LedgerGroup(chosen.by),), limit=GROUPS_SHOWN))
        of_losses = LedgerFilter(chosen.accounts, job_id=chosen.job)
        losses = ledger.list_entries(unit, of_losses, span, Part(LOSSES_SHOWN + 1))
        return {"found": found, "groups": groups, "losses": losses[:LOSSES_SHOWN], "more": len(losses) > LOSSES_SHOWN}

    shown = reading(dependencies_of(request).units, viewer.principal, ledger.READ, read)
    sums = shown["found"].sums
    accounts = _by_account(sums)
    return pages_of(request).page(
        request,
        "utilisation.html",
        viewer,
        place="utilisation",
        chosen=chosen,
        accounts=sorted(accounts.items(), key=lambda one: -one[1]),
        figures=_figures(sums),
        unexplained_ms=accounts.get(Account.UNEXPLAINED, 0),
        groupings=list(By),
        group_field=GROUPED_BY[LedgerGroup(chosen.by)],
        ranges=list(Range),
        meanings=MEANINGS,
        is_of_fleet=viewer.principal.sees_all_tenants,
        **shown,
    )


@router.get("/utilisation.json")
def utilisation_charts(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Return GPU-hours by account and hour or day, for the page's chart."""
    step = LedgerGroup.HOUR if chosen.range is Range.DAY and chosen.month is None else LedgerGroup.DAY
    units = dependencies_of(request).units

    def read(unit: UnitOfWork) -> list[LedgerSum]:
        asked = LedgerQuery((step, LedgerGroup.ACCOUNT), chosen.span(unit.now), LedgerFilter(job_id=chosen.job), 20_000)
        return list(ledger.sums(unit, asked).sums)

    return JSONResponse(_chart(reading(units, viewer.principal, ledger.READ, read)))


def _chart(sums: Iterable[LedgerSum]) -> dict[str, Any]:
    found: dict[str, dict[int, float]] = {}
    for each in sums:
        own = found.setdefault(each.values["account"], {})
        own[to_ms(each.values["begins_at"])] = each.num_ms / 3_600_000
    moments = sorted({at for own in found.values() for at in own})
    lines = [
        {"name": account.replace("_", " "), "points": [[at, found[account].get(at, 0.0)] for at in moments]}
        for account in (str(each) for each in Account)
        if account in found
    ]
    chart = {"title": "GPU time by account", "unit": "GPU-hours", "x": "time", "marks": [], "is_stacked": True}
    return {"charts": [{**chart, "lines": lines}], "refresh_s": REFRESH_S}


def _by_account(sums: Iterable[LedgerSum]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in sums:
        account = each.values["account"]
        found[account] = found.get(account, 0) + each.num_ms
    return found


def _figures(sums: Iterable[LedgerSum]) -> list[tuple[str, str, float | None]]:
    """Return name, formula and share of each figure that sums of accounts suffice for."""
    of_attempts: dict[Account, int] = {}
    others: dict[Account, int] = {}
    for each in sums:
        found = of_attempts if each.values["tenant_id"] else others
        account = Account(each.values["account"])
        found[account] = found.get(account, 0) + each.num_ms
    window = Window(Times(of_attempts, others))
    return [(one.name, one.formula, one.of(window)) for one in LEDGER_FIGURES if one.name in OF_TIMES]


MEANINGS: Final = {
    Account.RETIRED: "GPUs that left the fleet",
    Account.LOST: "no progress by a hang, or steps that a divergence or a corruption made worthless",
    Account.RECLAIM_LOST: "steps trained again after a reclaim",
    Account.REPLAYED: "steps trained again after any other end or fault",
    Account.STARTING: "from the placement to the first step",
    Account.SAVING: "checkpoints being saved",
    Account.RESTORING: "checkpoints being restored",
    Account.SLOWED: "the part of steps beyond the usual, by a slow peer",
    Account.PRODUCTIVE: "first executions of steps",
    Account.IDLE: "assigned, and none of the others",
    Account.CLEANING: "until the GPU is proved clean",
    Account.REPAIR: "in repair",
    Account.QUARANTINED: "quarantined, by its cause",
    Account.CORDONED: "cordoned or closed",
    Account.BURN_IN: "under burn-in",
    Account.NO_CONTACT: "the control plane did not know",
    Account.UNPROVEN: "not proved good yet",
    Account.SUSPECT: "suspect and empty",
    Account.SPARE: "kept as a spare",
    Account.HOLD: "kept free for a job",
    Account.DRAINING: "free on a host that is emptied",
    Account.PENDING: "free while a job waits, by its binding reason",
    Account.FREE: "no job waited",
    Account.UNEXPLAINED: "a fault of this ledger: report it",
}
