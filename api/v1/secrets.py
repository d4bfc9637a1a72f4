"""Routes of tenants' secrets, whose values no route returns, and of the keys that protect them."""

import base64
import binascii
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import AfterValidator, Field

from api.bodies import described_by, json_body
from api.changes import Answer, Changing, etag_of, version_in
from api.dependencies import dependencies_of
from api.lists import Cursor, NamePart, PageRequest, order_of
from api.permissions import requires
from api.reading import Limit, reading, require_id
from api.refusals import refusing_also
from api.secret_keys import keys_of
from api.views import secret_view
from control.core.paging import NameOrder
from control.secrets import rewrapping, tenant_secrets
from control.secrets.tenant_secrets import MOST_BYTES, SecretRecord
from muster import documents
from muster.domain.errors import NotFoundError, SecretKeyError, ValidationFailedError
from muster.domain.ids import SecretId, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.strict import Name, StrictModel, Text, clean_name

router = APIRouter(tags=["secrets"])
MOST_SHOWN: Final = 63
"""Characters of a refused name that are repeated."""
_NEEDS_SECRET_KEYS: Final = [refusing_also(SecretKeyError)]


class SecretValue(StrictModel):
    """A value of 1 to 65,536 bytes. It is stored encrypted, and in no answer, log or event."""

    value: str
    encoding: Literal["text", "base64"] = "text"

    def content(self) -> bytes:
        """Return the bytes. Raises ``ValidationFailedError``, which repeats nothing of the value."""
        if self.encoding == "text":
            return self.value.encode()
        most = 4 * MOST_BYTES  # a longer text is refused for its size by any reading
        try:
            return base64.b64decode(self.value[:most], validate=True)
        except (binascii.Error, ValueError):
            raise ValidationFailedError.at("/value", "no_base64", "is not base64, as `encoding` says") from None


def _secret_name(text: str) -> str:
    """Return the name of a new secret. It is no value, which has a field of its own, so a refusal shows it."""
    try:
        return clean_name(text)
    except ValueError as fault:
        shown = text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
        raise ValueError(f"{shown!a} is no name: it {fault}") from None


class NewSecret(SecretValue):
    name: Annotated[str, AfterValidator(_secret_name), Field(min_length=1, max_length=63)]
    jobs: Annotated[tuple[Name, ...], Field(max_length=64, strict=False)] = ()
    tenant_id: Text | None = None


def _answer(secret: SecretRecord, status: int = 200) -> Answer:
    return Answer(secret_view(secret), status, etag_of(secret.version), f"/v1/secrets/{secret.id}")


@router.post(
    "/secrets",
    response_model=documents.ChangedSecret,
    status_code=201,
    openapi_extra=described_by(NewSecret),
    dependencies=_NEEDS_SECRET_KEYS,
)
def create_secret(
    request: Request,
    principal: Annotated[Principal, requires(Permission.SECRET_WRITE)],
    wanted: Annotated[NewSecret, json_body(NewSecret)],
    change: Changing,
) -> JSONResponse:
    """Store a new secret. No Idempotency-Key is kept, since its row would hold a hash of the value."""
    first = tenant_secrets.seal_first(
        keys_of(request),
        principal,
        wanted.name,
        wanted.content(),
        jobs=wanted.jobs,
        tenant_id=None if wanted.tenant_id is None else TenantId(wanted.tenant_id),
    )
    once = change.without_key()
    return once.run(
        principal,
        tenant_secrets.CREATE,
        lambda unit: tenant_secrets.create(unit, first),
        lambda secret: _answer(secret, 201),
    )


@router.get("/secrets", dependencies=[refusing_also(NotFoundError)])
def list_secrets(
    request: Request,
    principal: Annotated[Principal, requires(Permission.SECRET_READ)],
    tenant_id: Annotated[str | None, Query(max_length=64)] = None,
    name: NamePart = None,
    order: Annotated[NameOrder, Query()] = NameOrder.NAME,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> documents.SecretPage:
    """Return names, versions and times, and no value; by tenant and name unless ``order`` says otherwise."""
    owner = None if tenant_id is None else TenantId(require_id("tenant", tenant_id))
    return PageRequest(request, principal, tenant_secrets.SORTS[order], cursor, limit).answer(
        tenant_secrets.READ,
        {"path": "secrets", "tenant_id": tenant_id},
        lambda unit, part: tenant_secrets.list_secrets(unit, part, tenant_id=owner, name=name),
        secret_view,
        newer={"name": name, "order": order_of(order, NameOrder.NAME)},
    )


@router.get("/secrets/{secret_id}", response_model=documents.Secret)
def show_secret(
    secret_id: str, request: Request, principal: Annotated[Principal, requires(Permission.SECRET_READ)]
) -> Response:
    found_id, units = SecretId(require_id("secret", secret_id)), dependencies_of(request).units
    secret = reading(units, principal, tenant_secrets.READ, lambda unit: tenant_secrets.get_secret(unit, found_id))
    return JSONResponse(secret_view(secret), headers={"ETag": etag_of(secret.version)})


@router.post(
    "/secrets/{secret_id}/rotate",
    response_model=documents.ChangedSecret,
    openapi_extra=described_by(SecretValue),
    dependencies=_NEEDS_SECRET_KEYS,
)
def rotate_secret(
    secret_id: str,
    request: Request,
    principal: Annotated[Principal, requires(Permission.SECRET_WRITE)],
    wanted: Annotated[SecretValue, json_body(SecretValue)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Give a secret its next value: attempts that are placed from now on get it. No Idempotency-Key is kept."""
    found_id, version = SecretId(require_id("secret", secret_id)), version_in(if_match, is_required=False)
    units = dependencies_of(request).units
    following = tenant_secrets.seal_next(units, keys_of(request), principal, found_id, wanted.content())
    return change.without_key().run(
        principal,
        tenant_secrets.ROTATE,
        lambda unit: tenant_secrets.rotate(unit, following, expected_version=version),
        _answer,
    )


@router.delete("/secrets/{secret_id}", response_model=documents.ChangedSecret)
def delete_secret(
    secret_id: str,
    principal: Annotated[Principal, requires(Permission.SECRET_WRITE)],
    change: Changing,
    if_match: Annotated[str | None, Header()] = None,
) -> JSONResponse:
    """Delete a secret with all its values: no host receives it from now on."""
    found_id, version = SecretId(require_id("secret", secret_id)), version_in(if_match, is_required=False)
    return change.run(
        principal,
        tenant_secrets.DELETE,
        lambda unit: tenant_secrets.delete(unit, found_id, expected_version=version),
        _answer,
    )


@router.get("/secret-keys", dependencies=_NEEDS_SECRET_KEYS)
def list_secret_keys(
    request: Request, principal: Annotated[Principal, requires(Permission.SECRET_KEY_WRITE)]
) -> documents.SecretKeyPage:
    """Return the keys that protect secrets, by id, the active one first, and how many values each protects."""
    keys, units = keys_of(request), dependencies_of(request).units
    active, usable = keys.active_key_id(), keys.key_ids()
    found = reading(units, principal, rewrapping.READ, lambda unit: rewrapping.keys_in_use(unit, active, usable))
    return {"items": [_key_view(one) for one in found], "next_cursor": None}


def _key_view(found: rewrapping.SecretKeyUse) -> documents.SecretKey:
    return {
        "key_id": found.key_id,
        "is_active": found.is_active,
        "is_usable": found.is_usable,
        "num_values": found.num_values,
    }


@router.post("/secret-keys/rewrap", response_model=documents.ChangedSecretKeys, dependencies=_NEEDS_SECRET_KEYS)
def rewrap_secrets(
    request: Request, principal: Annotated[Principal, requires(Permission.SECRET_KEY_WRITE)], change: Changing
) -> JSONResponse:
    """Wrap the next 100 values again under the active key. Repeat it until ``num_left`` or ``num_rewrapped`` is 0."""
    batch = rewrapping.wrap_batch(dependencies_of(request).units, keys_of(request), principal)
    return change.without_key().run(
        principal,
        rewrapping.REWRAP,
        lambda unit: rewrapping.store_batch(unit, batch),
        lambda done: Answer(
            {
                "key_id": batch.active,
                "num_rewrapped": done.num_rewrapped,
                "num_left": done.num_left,
                "num_unusable": done.num_unusable,
                "needed_keys": list(done.needed_keys),
            }
        ),
    )
