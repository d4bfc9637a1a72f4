"""Pages of statements: the months, one with its lines, and the same as files."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from api.v1.statements import signed_statement_of, statement_of
from console.rendering import HEADERS, pages_of
from console.session import Viewer, sees
from control.ledger import statements
from muster.documents.bill_tables import focus_csv, plain_csv
from muster.domain.principals import Permission

router = APIRouter()
SHOWN: Final = 500
MONTHS_SHOWN: Final = 13
Reader = Annotated[Viewer, sees(Permission.TENANT_READ)]
Tenant = Annotated[str | None, Query(max_length=64, pattern="^[0-9a-z_]+$")]


@router.get("/statements")
def statements_page(request: Request, viewer: Reader) -> Response:
    """List the months, the newest first."""
    units = dependencies_of(request).units
    months = reading(units, viewer.principal, statements.READ, lambda unit: statements.list_months(unit, MONTHS_SHOWN))
    shown = [each for place, each in enumerate(months) if each.num_hours or not place]
    return pages_of(request).page(request, "statements.html", viewer, place="statements", months=shown)


@router.get("/statements/{month}")
def statement_page(month: str, request: Request, viewer: Reader, tenant_id: Tenant = None) -> Response:
    """Show what was used in a month and what is due, the dearest lines first."""
    found = statement_of(month, request, viewer.principal, tenant_id)
    lines = sorted(found["lines"], key=lambda line: (-Decimal(line["amount"] or 0), -Decimal(line["gpu_hours"])))
    return pages_of(request).page(
        request,
        "statement.html",
        viewer,
        place="statements",
        statement=found,
        lines=lines[:SHOWN],
        last_day=_last_day(found["ends_at"]),
        month_name=f"{datetime.fromisoformat(found['begins_at']):%B %Y}",
        tenant_id=tenant_id,
        shows_tenant=viewer.principal.sees_all_tenants,
    )


@router.get("/statements/{month}/bill.csv")
def bill_csv(month: str, request: Request, viewer: Reader, tenant_id: Tenant = None) -> Response:
    """Return every line as CSV."""
    text = plain_csv(statement_of(month, request, viewer.principal, tenant_id))
    return _file(text, "text/csv", f"bill-{month}.csv")


@router.get("/statements/{month}/focus.csv")
def bill_focus(month: str, request: Request, viewer: Reader, tenant_id: Tenant = None) -> Response:
    """Return the priced lines by FinOps FOCUS 1.0."""
    text = focus_csv(statement_of(month, request, viewer.principal, tenant_id), "Muster")
    return _file(text, "text/csv", f"focus-{month}.csv")


@router.get("/statements/{month}/signed.json")
def bill_signed(month: str, request: Request, viewer: Reader, tenant_id: Tenant = None) -> Response:
    """Return the statement with the signature of the operator's key."""
    found = signed_statement_of(month, request, viewer.principal, tenant_id)
    return _file(json.dumps(found), "application/json", f"bill-{month}.json")


def _last_day(ends_at: str) -> str:
    return f"{datetime.fromisoformat(ends_at) - timedelta(days=1):%Y-%m-%d}"


def _file(text: str, media_type: str, name: str) -> Response:
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=media_type, headers=headers)
