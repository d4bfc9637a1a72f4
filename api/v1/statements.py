"""Routes of statements: what was used in a month and what is due, and the same with a signature."""

import re
from datetime import UTC, datetime
from typing import Annotated, Final

from fastapi import APIRouter, Request

from api.dependencies import dependencies_of
from api.lists import OfTenant
from api.money_views import statement_view
from api.permissions import requires
from api.reading import reading
from api.refusals import refusing_also
from control.ledger import statements
from control.ledger.bill_keys import BillKeys, SigningKey
from muster.documents import money as documents
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.signed_bills import FORMAT

router = APIRouter(tags=["money"])
Reader = Annotated[Principal, requires(Permission.TENANT_READ)]
_MONTH: Final = re.compile(r"(20[0-9]{2})-(0[1-9]|1[0-2])")


@router.get("/statements/{month}")
def show_statement(month: str, request: Request, principal: Reader, tenant_id: OfTenant = None) -> documents.Statement:
    """Return what was used in a month such as 2026-11, and what is due: of one tenant, or of all that are visible."""
    return statement_of(month, request, principal, tenant_id)


@router.get("/statements/{month}/signed", dependencies=[refusing_also(ConflictError)])
def sign_statement(
    month: str, request: Request, principal: Reader, tenant_id: OfTenant = None
) -> documents.SignedStatement:
    """Return the statement with the signature of the operator's key. 409: this control plane has no such key."""
    return signed_statement_of(month, request, principal, tenant_id)


@router.get("/bill-keys", dependencies=[refusing_also(ConflictError)])
def list_bill_keys(request: Request, principal: Reader) -> documents.BillKeyPage:
    """List the public keys of bills, the one that signs new bills first. 409: this control plane has none."""
    del principal
    items: list[documents.BillKey] = [
        {"key_id": key.key_id, "public_key": key.public_key, "is_active": place == 0}
        for place, key in enumerate(_keys(request))
    ]
    return {"items": items, "next_cursor": None}


def _keys(request: Request) -> list[SigningKey]:
    return BillKeys(dependencies_of(request).bill_keys_file).keys()


def statement_of(month: str, request: Request, principal: Principal, tenant_id: str | None) -> documents.Statement:
    """Return the statement of a month such as 2026-11. Raises ``NotFoundError``: no month is written so."""
    named = _MONTH.fullmatch(month)
    if named is None:
        raise NotFoundError("a month is written as 2026-11")
    at, units = datetime(int(named[1]), int(named[2]), 1, tzinfo=UTC), dependencies_of(request).units
    wanted = None if tenant_id is None else TenantId(tenant_id)
    found = reading(
        units,
        principal,
        statements.READ,
        lambda unit: statements.statement(unit, at, tenant_id=wanted),
        is_one_snapshot=True,
    )
    return statement_view(found, tenant_id or principal.tenant_id)


def signed_statement_of(
    month: str, request: Request, principal: Principal, tenant_id: str | None
) -> documents.SignedStatement:
    """Return the statement with its signature. Raises ``ConflictError``: there is no key."""
    key = _keys(request)[0]
    found = statement_of(month, request, principal, tenant_id)
    return {
        "format": FORMAT,
        "statement": found,
        "key_id": key.key_id,
        "public_key": key.public_key,
        "signature": key.sign(found),
    }
