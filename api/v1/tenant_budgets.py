"""Routes of budgets: how much a tenant may spend in a month or until a day, and what follows once that is spent."""

from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.dependencies import dependencies_of
from api.money_views import budget_view
from api.permissions import requires
from api.reading import reading, require_id
from api.views import time_of
from control.ledger import budgets
from control.ledger.budgets import TenantBudgetRecord, Wanted
from muster.documents import money as documents
from muster.domain.budgets import BudgetAction
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.rates import Price
from muster.domain.strict import Moment, StrictModel, Text

router = APIRouter(prefix="/tenants/{tenant_id}/budget", tags=["money"])
Reason = Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]
Share = Annotated[int, Field(ge=1, le=100)]


class NewTenantBudget(StrictModel):
    """A budget to set, in place of the one before. It is in the currency of the rate cards.

    Without ``ends_at`` it is one of each calendar month in UTC.
    """

    amount: Price
    reason: Reason
    action: Annotated[BudgetAction, Field(strict=False)] = BudgetAction.NOTIFY
    shares: Annotated[tuple[Share, ...], Field(strict=False, max_length=20)] = (50, 80, 100)
    begins_at: Moment | None = None
    ends_at: Moment | None = None


class BudgetLift(StrictModel):
    reason: Reason


@router.put("", response_model=documents.ChangedTenantBudget, openapi_extra=described_by(NewTenantBudget))
def set_tenant_budget(
    tenant_id: str,
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[NewTenantBudget, json_body(NewTenantBudget)],
    change: Changing,
) -> JSONResponse:
    """Set the budget of a tenant with all below it. One that is spent already acts at once, never without notice."""
    found_id = TenantId(require_id("tenant", tenant_id))
    budget = Wanted(Decimal(wanted.amount), wanted.action, wanted.shares, wanted.begins_at, wanted.ends_at)
    return change.run(
        principal,
        budgets.SET,
        lambda unit: budgets.set_budget(unit, found_id, budget, reason=wanted.reason),
        lambda found: Answer(budget_view(found, principal)),
    )


@router.get("")
def show_tenant_budget(
    tenant_id: str, request: Request, principal: Annotated[Principal, requires(Permission.TENANT_READ)]
) -> documents.TenantBudget:
    """Return a tenant's budget and what is spent of it. 404: it has none."""
    found_id, units = TenantId(require_id("tenant", tenant_id)), dependencies_of(request).units
    found = reading(units, principal, budgets.READ, lambda unit: budgets.show(unit, found_id), is_one_snapshot=True)
    return budget_view(found, principal)


@router.post("/lift", response_model=documents.LiftedBudget, openapi_extra=described_by(BudgetLift))
def lift_tenant_budget(
    tenant_id: str,
    principal: Annotated[Principal, requires(Permission.TENANT_WRITE)],
    wanted: Annotated[BudgetLift, json_body(BudgetLift)],
    change: Changing,
) -> JSONResponse:
    """End a tenant's budget: it refuses and stops nothing more."""
    found_id = TenantId(require_id("tenant", tenant_id))
    return change.run(principal, budgets.LIFT, lambda unit: budgets.lift(unit, found_id, reason=wanted.reason), _lifted)


def _lifted(row: TenantBudgetRecord) -> Answer:
    amount = {"amount": f"{row.amount.normalize():f}", "currency": row.currency}
    return Answer({"tenant_id": row.tenant_id, **amount, "lifted_at": time_of(row.lifted_at)})
