"""Pages of statements: the months, one with its lines, and the same as files."""

import json
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Final
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from api.v1.statements import signed_statement_of, statement_of
from console.rendering import csv_answer, file_answer, pages_of
from console.session import Viewer, sees
from console.tables import Column, Order, Table
from control.ledger import statements
from control.ledger.statements import Month
from muster.documents.bill_tables import focus_csv, plain_csv
from muster.documents.money import StatementLine
from muster.domain.principals import Permission

router = APIRouter()
Ordered = Annotated[Order, Depends()]
MONTHS_SHOWN: Final = 13
Reader = Annotated[Viewer, sees(Permission.TENANT_READ)]
Tenant = Annotated[str | None, Query(max_length=64, pattern="^[0-9a-z_]+$")]


MONTHS: Final = Table[Month](
    "months",
    (
        Column("month", "Month", lambda month: month.begins_at),
        Column("revision", "State", lambda month: month.revision),
        Column("hours", "Hours counted", lambda month: month.num_hours, is_number=True),
        Column("open_hours", "May change", lambda month: month.num_open, is_number=True),
        Column("files", "Files", lambda _: None, is_number=True, is_sortable=False),
    ),
    "-month",
)


def lines_table(*, shows_tenant: bool) -> Table[StatementLine]:
    return Table(
        "lines",
        (
            Column("tenant", "Tenant", lambda line: line["tenant_name"] or line["tenant_id"], is_shown=shows_tenant),
            Column("job", "Job", lambda line: line["job_name"] or line["job_id"]),
            Column("model", "Model", lambda line: line["model"]),
            Column("tier", "Tier", lambda line: line["tier"]),
            Column("account", "Account", lambda line: line["account"]),
            Column("gpu_hours", "GPU-hours", lambda line: Decimal(line["gpu_hours"]), is_number=True),
            Column("price", "Price", lambda line: _decimal(line["price_per_gpu_hour"]), is_number=True),
            Column("amount", "Amount", lambda line: _decimal(line["amount"]), is_number=True),
            Column("credit", "Credit", lambda line: _decimal(line["credit"]), is_number=True),
            Column("attempts", "What happened", lambda line: len(line["attempts"]), is_sortable=False),
        ),
        "-amount",
    )


@router.get("/statements")
def statements_page(request: Request, viewer: Reader, order: Ordered) -> Response:
    """List the months, the newest first unless another order is asked for."""
    order.require([MONTHS])
    units = dependencies_of(request).units
    months = reading(units, viewer.principal, statements.READ, lambda unit: statements.list_months(unit, MONTHS_SHOWN))
    known = [each for place, each in enumerate(months) if each.num_hours or not place]
    return pages_of(request).page(
        request, "statements.html", viewer, place="statements", months=MONTHS.shown(known, order), newest=months[0]
    )


@router.get("/statements/{month}")
def statement_page(month: str, request: Request, viewer: Reader, order: Ordered, tenant_id: Tenant = None) -> Response:
    """Show what was used in a month and what is due, the dearest lines first unless another order is asked for."""
    table = lines_table(shows_tenant=viewer.principal.sees_all_tenants)
    order.require([table])
    found = statement_of(month, request, viewer.principal, tenant_id)
    return pages_of(request).page(
        request,
        "statement.html",
        viewer,
        place="statements",
        statement=found,
        lines=table.shown(found["lines"], order),
        last_day=_last_day(found["ends_at"]),
        month_name=f"{datetime.fromisoformat(found['begins_at']):%B %Y}",
        tenant_id=tenant_id,
        shows_tenant=viewer.principal.sees_all_tenants,
        asked=urlencode({"tenant_id": tenant_id} if tenant_id else {}),
    )


@router.get("/statements/{month}/bill.csv")
def bill_csv(month: str, request: Request, viewer: Reader, order: Ordered, tenant_id: Tenant = None) -> Response:
    """Return every line as CSV, in the order in which the page shows them."""
    table = lines_table(shows_tenant=True)
    order.require([table])
    found = statement_of(month, request, viewer.principal, tenant_id)
    text = plain_csv({**found, "lines": table.in_order(found["lines"], order)})
    return csv_answer(f"bill-{month}", text)


@router.get("/statements/{month}/focus.csv")
def bill_focus(month: str, request: Request, viewer: Reader, tenant_id: Tenant = None) -> Response:
    """Return the priced lines by FinOps FOCUS 1.0."""
    text = focus_csv(statement_of(month, request, viewer.principal, tenant_id), "Muster")
    return csv_answer(f"focus-{month}", text)


@router.get("/statements/{month}/signed.json")
def bill_signed(month: str, request: Request, viewer: Reader, tenant_id: Tenant = None) -> Response:
    """Return the statement with the signature of the operator's key."""
    found = signed_statement_of(month, request, viewer.principal, tenant_id)
    return file_answer(f"bill-{month}.json", json.dumps(found), "application/json")


def _last_day(ends_at: str) -> str:
    return f"{datetime.fromisoformat(ends_at) - timedelta(days=1):%Y-%m-%d}"


def _decimal(amount: str | None) -> Decimal | None:
    return None if amount is None else Decimal(amount)
