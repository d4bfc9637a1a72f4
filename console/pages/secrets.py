"""Pages of secrets: names, versions and use. A value is written, and never shown, not even to its writer."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading, require_id
from api.secret_keys import keys_of
from api.v1.secrets import NewSecret
from console.actions import act, reason_in, require_typed_name
from console.forms import Form
from console.paging import page_of, place_in
from console.rendering import pages_of
from console.session import Viewer, changes, sees
from control.core.paging import NameOrder, Part
from control.core.unit_of_work import UnitOfWork
from control.secrets import secret_use, tenant_secrets
from control.secrets.secret_use import SecretUse
from control.tenants.read import TenantRecord, list_tenants
from muster.domain.ids import SecretId, TenantId
from muster.domain.principals import Permission
from muster.domain.validation import validated

router = APIRouter()
PATH: Final = "/console/secrets"
A_PAGE: Final = 100
READINGS_SHOWN: Final = 50
Reader = Annotated[Viewer, sees(Permission.SECRET_READ)]
Writer = Annotated[Viewer, changes(Permission.SECRET_WRITE)]


@router.get("/secrets")
def secrets_page(
    request: Request, viewer: Reader, cursor: Annotated[str | None, Query(max_length=1024)] = None
) -> Response:
    """Show the secrets by tenant and name, a page at a time."""
    dependencies = dependencies_of(request)
    place = place_in(dependencies.secret_key, {"secrets": None}, cursor, length=3)

    def read(unit: UnitOfWork) -> tuple[Sequence[SecretUse], Sequence[TenantRecord]]:
        owners = list_tenants(unit) if unit.principal.sees_all_tenants else ()
        return secret_use.list_used(unit, Part(A_PAGE + 1, place)), owners

    found, owners = reading(dependencies.units, viewer.principal, tenant_secrets.READ, read)
    page = page_of(
        dependencies.secret_key,
        {"secrets": None},
        found,
        size=A_PAGE,
        path=PATH,
        place=lambda last: tenant_secrets.SORTS[NameOrder.NAME].position_of(last.secret),
    )
    return pages_of(request).page(
        request,
        "secrets.html",
        viewer,
        place="secrets",
        page=page,
        owners=owners,
        owner_names={each.id: each.name for each in owners},
        has_keys=dependencies.secret_keys is not None,
    )


@router.get("/secrets/{secret_id}")
def secret_page(request: Request, viewer: Reader, secret_id: str) -> Response:
    """Show a secret's versions, and the reads of its values by hosts to a reader of the audit."""
    found_id = SecretId(require_id("secret", secret_id))
    found = reading(
        dependencies_of(request).units,
        viewer.principal,
        tenant_secrets.READ,
        lambda unit: secret_use.detail_of(unit, found_id, most_readings=READINGS_SHOWN),
    )
    return pages_of(request).page(
        request,
        "tenant_secret.html",
        viewer,
        place="secrets",
        found=found,
        has_keys=dependencies_of(request).secret_keys is not None,
        most_readings=READINGS_SHOWN,
    )


@router.post("/secrets")
def set_secret(request: Request, viewer: Writer, fields: Form) -> Response:
    """Set a new secret. Its value is sealed before the unit of work, and stands in no answer."""
    wanted = validated(NewSecret, _typed(fields))
    first = tenant_secrets.seal_first(
        keys_of(request),
        viewer.principal,
        wanted.name,
        wanted.content(),
        jobs=wanted.jobs,
        tenant_id=None if wanted.tenant_id is None else TenantId(wanted.tenant_id),
    )
    return act(
        request,
        viewer,
        fields,
        tenant_secrets.CREATE,
        lambda unit: tenant_secrets.create(unit, first),
        back_to=PATH,
        done=f"The secret {wanted.name} is set.",
    )


def _typed(fields: Mapping[str, str]) -> dict[str, object]:
    named = fields.get("jobs", "").replace(",", " ").split()
    owner = fields.get("tenant_id", "")
    return {
        "name": fields.get("name", "").strip(),
        "value": _value_in(fields),
        "jobs": named,
        **({"tenant_id": owner} if owner else {}),
    }


def _value_in(fields: Mapping[str, str]) -> str:
    """Return the value with the line ends that a file has: a browser sends CRLF."""
    return fields.get("value", "").replace("\r\n", "\n")


@router.post("/secrets/{secret_id}/rotate")
def rotate_secret(request: Request, viewer: Writer, fields: Form, secret_id: str) -> Response:
    found_id, reason = SecretId(require_id("secret", secret_id)), reason_in(fields)
    units = dependencies_of(request).units
    value = _value_in(fields).encode()
    following = tenant_secrets.seal_next(units, keys_of(request), viewer.principal, found_id, value)
    return act(
        request,
        viewer,
        fields,
        tenant_secrets.ROTATE,
        lambda unit: tenant_secrets.rotate(unit, following, reason=reason),
        back_to=f"{PATH}/{found_id}",
        done="It has its next value. Attempts that are placed from now on get it.",
    )


@router.post("/secrets/{secret_id}/delete")
def delete_secret(request: Request, viewer: Writer, fields: Form, secret_id: str) -> Response:
    found_id, reason = SecretId(require_id("secret", secret_id)), reason_in(fields)
    units = dependencies_of(request).units
    secret = reading(
        units, viewer.principal, tenant_secrets.READ, lambda unit: tenant_secrets.get_secret(unit, found_id)
    )
    require_typed_name(fields, secret.name)
    return act(
        request,
        viewer,
        fields,
        tenant_secrets.DELETE,
        lambda unit: tenant_secrets.delete(unit, found_id, reason=reason),
        back_to=PATH,
        done=f"The secret {secret.name} is deleted.",
    )
