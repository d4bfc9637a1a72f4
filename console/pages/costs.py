"""Page of costs: what this month costs until now, budgets, waste, and the prices in force."""

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.actions import act, reason_in
from console.forms import Form
from console.rendering import pages_of
from console.session import Viewer, changes, sees
from control.core.paging import Span
from control.core.unit_of_work import UnitOfWork
from control.ledger import budgets, rates, statements
from control.ledger import read as ledger
from control.ledger.job_costs import JobCost, cost_of_job
from control.ledger.read import LedgerFilter, LedgerGroup, LedgerQuery
from control.ledger.statements import Statement
from ledger.accounts import Account
from ledger.bills import Line, forecast, sums_by
from muster.domain.budgets import BudgetAction
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.principals import Permission

router = APIRouter()
ROWS_SHOWN: Final = 20
JOBS_SHOWN: Final = 10
BUDGETS_SHOWN: Final = 200
MOST_AMOUNT: Final = Decimal(10) ** 12


@router.get("/costs")
def costs_page(request: Request, viewer: Annotated[Viewer, sees(Permission.TENANT_READ)]) -> Response:
    """Show what this month costs. A tenant sees its own."""
    units = dependencies_of(request).units
    shown = reading(units, viewer.principal, statements.READ, _read, is_one_snapshot=True)
    return pages_of(request).page(
        request, "costs.html", viewer, place="costs", actions=list(BudgetAction), most_rows=ROWS_SHOWN, **shown
    )


@router.post("/costs/budgets/{tenant_id}")
def set_budget(
    request: Request,
    viewer: Annotated[Viewer, changes(Permission.TENANT_WRITE)],
    fields: Form,
    tenant_id: Annotated[str, Path(pattern=r"^ten_[0-9a-z]{26}$")],
) -> Response:
    """Set the monthly budget of a tenant."""
    wanted = budgets.Wanted(_amount(fields.get("amount", "")), _action(fields.get("action", "")), (50, 80, 100))
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        budgets.SET,
        lambda unit: budgets.set_budget(unit, TenantId(tenant_id), wanted, reason=reason),
        back_to="/console/costs",
        done="The budget is set.",
    )


def _read(unit: UnitOfWork) -> dict[str, Any]:
    found = statements.statement(unit, unit.now)
    charges = found.charges
    counted = min(max(charges.counted_until or charges.start, charges.start), charges.end)
    elapsed_s = (counted - charges.start).total_seconds()
    whole_s = (charges.end - charges.start).total_seconds()
    span = Span(charges.start, None)
    asked = LedgerQuery((LedgerGroup.JOB,), span, LedgerFilter([Account.IDLE]), JOBS_SHOWN + 1)
    return {
        "sums": charges.sums,
        "currency": None if charges.rates is None else charges.rates.currency,
        "start": charges.start,
        "counted": counted,
        "num_open": found.num_open,
        "forecast": forecast(charges.sums.due, elapsed_s, whole_s, charges.decimals),
        "groups": _groups(found),
        "credits": _credits(found),
        "dearest": _dearest(unit, found),
        "idle": [each for each in ledger.sums(unit, asked).sums if each.values["job_id"]][:JOBS_SHOWN],
        "job_names": found.job_names,
        "tenant_names": found.tenant_names,
        "budgets": budgets.list_budgets(unit, BUDGETS_SHOWN),
        "rates": rates.show(unit),
    }


def _groups(found: Statement) -> list[tuple[str, list[Any]]]:
    charges = found.charges
    names = found.tenant_names
    by = (
        ("Tenant", lambda key: names.get(key.tenant_id, key.tenant_id)),
        ("Model", lambda key: key.model),
        ("Tier", lambda key: key.tier),
        ("Account", lambda key: str(key.account).replace("_", " ")),
    )
    return [(title, sums_by(charges.lines, group, charges.decimals)[:ROWS_SHOWN]) for title, group in by]


def _credits(found: Statement) -> list[tuple[Line, Decimal]]:
    """Return the lines of which something is given back, the most first."""
    known = [(line, line.credit(found.charges.decimals) or Decimal(0)) for line in found.charges.lines]
    return sorted((one for one in known if one[0].credited_ms), key=lambda one: one[1])[:ROWS_SHOWN]


def _dearest(unit: UnitOfWork, found: Statement) -> list[tuple[str, Any, JobCost]]:
    """Return the jobs that cost the most this month, with what each cost in all."""
    every = sums_by(found.charges.lines, lambda key: key.job_id, found.charges.decimals)
    known = [(job_id, own) for job_id, own in every if job_id in found.job_names][:JOBS_SHOWN]
    return [(job_id, own, cost_of_job(unit, JobId(job_id))) for job_id, own in known]


def _amount(text: str) -> Decimal:
    try:
        found = Decimal(text.strip())
    except InvalidOperation:
        found = Decimal(-1)
    if not found.is_finite() or not 0 <= found < MOST_AMOUNT or found != round(found, 6):
        raise ValidationFailedError.at("/amount", "no_amount", "is a number such as 2500.00, with at most 6 decimals")
    return found


def _action(text: str) -> BudgetAction:
    try:
        return BudgetAction(text)
    except ValueError:
        raise ValidationFailedError.at("/action", "unknown", f"is one of: {', '.join(BudgetAction)}") from None
