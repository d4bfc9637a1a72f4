"""Page of utilisation: where GPU time went, by account and group, and what explains the newest losses."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.annotations import marks_in
from console.figure_charts import change
from console.ranges import Range, Shown, Stretch
from console.rendering import pages_of
from console.session import Viewer, sees
from console.utilisation_charts import MEANINGS, by_name, chart_of, step_of, times_next_to
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.ledger import read as ledger
from control.ledger.read import GROUPED_BY, LedgerFilter, LedgerGroup, LedgerQuery, LedgerSum, LedgerSums
from control.ledger.statements import job_names, tenant_names
from ledger.accounts import OF_ATTEMPTS, Account
from ledger.measures import LEDGER_FIGURES, Times, Window
from muster.domain.principals import Permission

router = APIRouter()
GROUPS_SHOWN: Final = 50
LOSSES_SHOWN: Final = 20
POINTS_READ: Final = 20_000
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
class UtilisationQuery(Shown):
    """The stretch of time, and what groups have in common.

    ``job``, ``account``: of which entries are listed, as a line of a bill names them.
    """

    by: Annotated[By, Query()] = By.TENANT
    job: Annotated[str | None, Query(max_length=128, pattern="^job_[0-9a-z]+$")] = None
    account: Annotated[Account | None, Query()] = None

    @property
    def accounts(self) -> tuple[Account, ...]:
        return LOSSES if self.account is None else (self.account,)

    @property
    def ranges(self) -> list[Range]:
        """The usual stretches; of one job not the year, since entries are summed up over a month at most."""
        return [each for each in Range if self.job is None or each is not Range.YEAR]

    def sums(self, unit: UnitOfWork, shown: Stretch, *groups: LedgerGroup, limit: int = POINTS_READ) -> LedgerSums:
        return ledger.sums(unit, LedgerQuery(groups, shown.span, LedgerFilter(job_id=self.job), limit))


Chosen = Annotated[UtilisationQuery, Depends()]


@router.get("/utilisation")
def utilisation_page(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Show where GPU time went. A tenant sees the time of its own attempts."""
    found = reading(
        dependencies_of(request).units,
        viewer.principal,
        ledger.READ,
        lambda unit: _read(unit, chosen),
        is_one_snapshot=True,
    )
    shown: dict[str, Any] = {"chosen": chosen, "groupings": list(By), "meanings": MEANINGS, "change": change}
    is_of_fleet = viewer.principal.sees_all_tenants
    return pages_of(request).page(
        request, "utilisation.html", viewer, place="utilisation", is_of_fleet=is_of_fleet, **found, **shown
    )


@router.get("/utilisation.json")
def utilisation_charts(request: Request, viewer: Reader, chosen: Chosen) -> Response:
    """Return GPU-hours by account and hour or day, for the page's chart."""

    def read(unit: UnitOfWork) -> dict[str, Any]:
        shown = chosen.stretch(unit.now)

        def past(of: Stretch) -> list[LedgerSum]:
            return list(chosen.sums(unit, of, step_of(shown), LedgerGroup.ACCOUNT).sums)

        earlier = past(shown.before) if chosen.compare else None
        return chart_of(past(shown), shown, marks_in(unit, shown), earlier)

    return JSONResponse(reading(dependencies_of(request).units, viewer.principal, ledger.READ, read))


def _read(unit: UnitOfWork, chosen: UtilisationQuery) -> dict[str, Any]:
    shown = chosen.stretch(unit.now)
    earlier = shown.before if chosen.compare else None
    found = chosen.sums(unit, shown, LedgerGroup.ACCOUNT)
    accounts = by_name(found.sums, "account")
    before = None if earlier is None else by_name(chosen.sums(unit, earlier, LedgerGroup.ACCOUNT).sums, "account")
    entries = LedgerFilter(chosen.accounts, job_id=chosen.job)
    losses = ledger.list_entries(unit, entries, shown.span, Part(LOSSES_SHOWN + 1))
    return {
        "found": found,
        "shown": shown,
        "accounts": times_next_to(accounts, before),
        "figures": _figures(accounts, before),
        "unexplained_ms": accounts.get(Account.UNEXPLAINED, 0),
        "losses": losses[:LOSSES_SHOWN],
        "job_names": job_names(unit.session, {each.job_id for each in losses if each.job_id}),
        "more": len(losses) > LOSSES_SHOWN,
        **_groups(unit, chosen, shown, earlier),
    }


def _groups(unit: UnitOfWork, chosen: UtilisationQuery, shown: Stretch, earlier: Stretch | None) -> dict[str, Any]:
    group = LedgerGroup(chosen.by)
    field = GROUPED_BY[group]
    now = by_name(chosen.sums(unit, shown, group).sums, field)
    before = None if earlier is None else by_name(chosen.sums(unit, earlier, group).sums, field)
    found = times_next_to(now, before)
    names = tenant_names(unit.session, set(now)) if chosen.by is By.TENANT else {}
    return {"groups": found[:GROUPS_SHOWN], "num_groups": len(found), "names": names}


def _figures(
    accounts: dict[str, int], before: dict[str, int] | None
) -> list[tuple[str, str, float | None, float | None]]:
    """Return name, formula, share and share before of each figure that sums of accounts suffice for."""
    now, earlier = _window(accounts), _window(before or {})
    return [(one.name, one.formula, one.of(now), one.of(earlier)) for one in LEDGER_FIGURES if one.name in OF_TIMES]


def _window(accounts: dict[str, int]) -> Window:
    times = {Account(name): num_ms for name, num_ms in accounts.items()}
    of_attempts = {account: num_ms for account, num_ms in times.items() if account in OF_ATTEMPTS}
    others = {account: num_ms for account, num_ms in times.items() if account not in OF_ATTEMPTS}
    return Window(Times(of_attempts, others))
