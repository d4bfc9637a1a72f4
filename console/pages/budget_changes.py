"""Changes of budgets from the page of costs: a tenant's first one, and another amount, action or notices."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from console.actions import act, reason_in
from console.forms import Form
from console.session import Viewer, changes
from control.core.unit_of_work import UnitOfWork
from control.ledger import budgets
from control.ledger.budgets import Standing, Wanted
from muster.domain.budgets import BudgetAction
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId, is_id
from muster.domain.principals import Permission

router = APIRouter()
MOST_AMOUNT: Final = Decimal(10) ** 12
MOST_SHARES: Final = 20
FIRST_SHARES: Final = (50, 80, 100)
BACK: Final = "/console/costs"
Changer = Annotated[Viewer, changes(Permission.TENANT_WRITE)]


@router.post("/costs/budgets")
def set_first_budget(request: Request, viewer: Changer, fields: Form) -> Response:
    """Set the monthly budget of the tenant that the form names."""
    tenant_id = fields.get("tenant_id", "")
    if not is_id("tenant", tenant_id):
        raise ValidationFailedError.at("/tenant_id", "no_tenant", "choose a tenant")
    return _set(request, viewer, fields, TenantId(tenant_id))


@router.post("/costs/budgets/{tenant_id}")
def set_budget(
    request: Request,
    viewer: Changer,
    fields: Form,
    tenant_id: Annotated[str, Path(pattern=r"^ten_[0-9a-z]{26}$")],
) -> Response:
    """Set the budget of a tenant in place of the one before; what the form leaves out stays as it is."""
    return _set(request, viewer, fields, TenantId(tenant_id))


def _set(request: Request, viewer: Viewer, fields: Mapping[str, str], tenant_id: TenantId) -> Response:
    wanted = Wanted(_amount(fields.get("amount", "")), _action(fields.get("action", "")), FIRST_SHARES)
    shares, reason = _shares(fields.get("shares")), reason_in(fields)

    def work(unit: UnitOfWork) -> Standing:
        kept = _in_place_of(_before(unit, tenant_id), wanted)
        return budgets.set_budget(
            unit, tenant_id, kept if shares is None else replace(kept, shares=shares), reason=reason
        )

    return act(request, viewer, fields, budgets.SET, work, back_to=BACK, done="The budget is set.")


def _before(unit: UnitOfWork, tenant_id: TenantId) -> Standing | None:
    try:
        return budgets.show(unit, tenant_id)
    except NotFoundError:
        return None


def _in_place_of(before: Standing | None, wanted: Wanted) -> Wanted:
    """Return what is wanted with the notices of the budget before, and its end, if it has one."""
    if before is None:
        return wanted
    row = before.row
    own = replace(wanted, shares=row.shares)
    return own if row.ends_at is None else replace(own, begins_at=row.begins_at, ends_at=row.ends_at)


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


def _shares(text: str | None) -> list[int] | None:
    """Return the shares at which notice is given, in per cent; None: the form has no such field."""
    if text is None:
        return None
    words = text.replace(",", " ").replace("%", " ").split()
    if len(words) > MOST_SHARES or not all(each.isascii() and each.isdigit() and len(each) <= 3 for each in words):
        found = [0]
    else:
        found = [int(each) for each in words]
    if not all(1 <= each <= 100 for each in found):
        detail = f"are at most {MOST_SHARES} whole numbers from 1 to 100, such as 50, 80, 100"
        raise ValidationFailedError.at("/shares", "no_shares", detail)
    return found
