"""Routes of API keys, and of the caller's own principal."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from api.access_conditions import AccessConditions
from api.authorized_query import AuthorizedQuery, answer, authorize_query
from api.bodies import described_by, json_body
from api.changes import Answer, Changing, etag_of, version_in
from api.dependencies import dependencies_of
from api.lists import Cursor, ManyAPage, PageRequest
from api.permissions import requires
from api.reading import reading, require_id
from api.refusals import refusing_also
from api.views import key_view
from control.core.paging import TimeOrder
from control.tenants import keys, read
from muster import documents
from muster.domain.errors import PreconditionRequiredError
from muster.domain.ids import KeyId, NodeId, TenantId
from muster.domain.principals import ROLE_PERMISSIONS, Permission, Principal, Role
from muster.domain.strict import Moment, Name, StrictModel, Text

router = APIRouter(tags=["keys"])


class NewApiKey(StrictModel):
    name: Name
    role: Annotated[Role, Field(strict=False)]
    tenant_id: Text | None = None
    node_id: Text | None = None
    expires_at: Moment | None = None


@router.post("/keys", response_model=documents.CreatedKey, status_code=201, openapi_extra=described_by(NewApiKey))
def create_key(
    principal: Annotated[Principal, requires(Permission.KEY_WRITE)],
    wanted: Annotated[NewApiKey, json_body(NewApiKey)],
    change: Changing,
) -> JSONResponse:
    """Create a key; ``token`` is in this answer alone, so no Idempotency-Key is kept for it."""

    def work(unit: Any) -> keys.NewKey:
        return keys.create(
            unit,
            name=wanted.name,
            role=wanted.role,
            tenant_id=None if wanted.tenant_id is None else TenantId(wanted.tenant_id),
            node_id=None if wanted.node_id is None else NodeId(wanted.node_id),
            expires_at=wanted.expires_at,
        )

    def render(made: keys.NewKey) -> Answer:
        body = {**key_view(made.key), "token": made.token.text}
        return Answer(body, 201, etag_of(made.key.version), f"/v1/keys/{made.key.id}")

    return change.without_key().run(principal, keys.CREATE, work, render)


@router.get("/keys")
def list_keys(
    request: Request,
    principal: Annotated[Principal, requires(Permission.KEY_READ)],
    where: Annotated[AccessConditions, Depends()],
    order: Annotated[TimeOrder, Query()] = TimeOrder.NEWEST,
    cursor: Cursor = None,
    limit: ManyAPage = read.MOST,
) -> documents.KeyPage:
    """Return keys without their secrets, the newest first unless ``order`` says otherwise."""
    wanted = where.wanted
    return PageRequest(request, principal, read.KEY_SORTS[order], cursor, limit).answer(
        keys.READ,
        {"path": "keys", **where.of_cursor, "order": order, "who": principal.tenant_id},
        lambda unit, part: read.list_keys(unit, wanted, part),
        key_view,
    )


@router.get("/keys/{key_id}", response_model=documents.Key)
def show_key(key_id: str, request: Request, principal: Annotated[Principal, requires(Permission.KEY_READ)]) -> Response:
    found_id = KeyId(require_id("key", key_id))
    key = reading(dependencies_of(request).units, principal, keys.READ, lambda unit: read.get_key(unit, found_id))
    return JSONResponse(key_view(key), headers={"ETag": etag_of(key.version)})


@router.delete(
    "/keys/{key_id}", response_model=documents.ChangedKey, dependencies=[refusing_also(PreconditionRequiredError)]
)
def revoke_key(
    key_id: str,
    principal: Annotated[Principal, requires(Permission.KEY_WRITE)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Revoke: from the commit on it opens nothing. Needs If-Match."""
    found_id = KeyId(require_id("key", key_id))
    version = version_in(if_match, is_required=True)
    return change.run(
        principal,
        keys.REVOKE,
        lambda unit: keys.revoke(unit, found_id, expected_version=version),
        lambda key: Answer(key_view(key), 200, etag_of(key.version)),
    )


@router.get("/whoami", response_model=documents.Whoami)
def whoami(authorized_query: Annotated[AuthorizedQuery, authorize_query(None)]) -> Response:
    """Return the principal of this key, and its permissions."""
    principal = authorized_query.principal()
    found: documents.Whoami = {
        "name": principal.name,
        "role": principal.role,
        "key_id": principal.key_id,
        "tenant_id": principal.tenant_id,
        "node_id": principal.node_id,
        "permissions": sorted(ROLE_PERMISSIONS[principal.role]),
    }
    return answer(found)
