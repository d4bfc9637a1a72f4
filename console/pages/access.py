"""Page of access: persons, API keys, tenants. A secret made here is shown once, on the answer itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from api.dependencies import dependencies_of
from api.reading import reading
from console.actions import act, reason_in
from console.forms import Form
from console.rendering import pages_of
from console.session import Viewer, changes, sees
from control.tenants import keys, persons, read
from control.tenants.read import KeyRecord, PersonRecord, TenantRecord
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import KeyId, TenantId
from muster.domain.principals import Permission, Role

router = APIRouter()
MAX_NAME: Final = 128
Maker = Annotated[Viewer, changes(Permission.KEY_WRITE)]
KeyName = Annotated[str, Path(pattern=r"^key_[0-9a-z]{26}$")]
PersonName = Annotated[str, Path(pattern=r"^prs_[0-9a-z]{26}$")]


@dataclass(frozen=True, slots=True)
class _Access:
    keys: Sequence[KeyRecord]
    persons: Sequence[PersonRecord]
    tenants: Sequence[TenantRecord]


@router.get("/access")
def access_page(request: Request, viewer: Annotated[Viewer, sees(Permission.KEY_READ)]) -> Response:
    found = reading(
        dependencies_of(request).units,
        viewer.principal,
        keys.READ,
        lambda unit: _Access(read.list_keys(unit), read.list_persons(unit), read.list_tenants(unit)),
    )
    own = viewer.principal.tenant_id
    roles = [role for role in Role if role in (persons.TENANT_ROLES if own else persons.PERSONS_ROLES)]
    names = {tenant.id: tenant.name for tenant in found.tenants}
    return pages_of(request).page(
        request, "access.html", viewer, place="access", found=found, roles=roles, tenant_names=names
    )


@router.post("/access/persons")
def create_person(request: Request, viewer: Maker, fields: Form) -> Response:
    name, role, tenant_id = _name_in(fields), _role_in(fields), _tenant_in(fields, viewer)
    units = dependencies_of(request).units
    with units.begin(viewer.principal, persons.CREATE) as unit:
        made = persons.create(unit, name=name, role=role, tenant_id=tenant_id)
    words = f"{made.person.name} signs in with this password."
    return pages_of(request).page(request, "secret.html", viewer, place="access", secret=made.password, words=words)


@router.post("/access/persons/{person_id}/reset-password")
def reset_password(request: Request, viewer: Maker, person_id: PersonName) -> Response:
    with dependencies_of(request).units.begin(viewer.principal, persons.RESET) as unit:
        made = persons.reset_password(unit, person_id)
    words = f"{made.person.name} signs in with this password; all earlier sessions have ended."
    return pages_of(request).page(request, "secret.html", viewer, place="access", secret=made.password, words=words)


@router.post("/access/persons/{person_id}/disable")
def disable_person(request: Request, viewer: Maker, fields: Form, person_id: PersonName) -> Response:
    reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        persons.DISABLE,
        lambda unit: persons.disable(unit, person_id),
        back_to="/console/access",
        done="They sign in no more.",
    )


@router.post("/access/keys")
def create_key(request: Request, viewer: Maker, fields: Form) -> Response:
    name, role, tenant_id = _name_in(fields), _role_in(fields), _tenant_in(fields, viewer)
    with dependencies_of(request).units.begin(viewer.principal, keys.CREATE) as unit:
        made = keys.create(unit, name=name, role=role, tenant_id=tenant_id)
    words = f"The key {made.key.name}, as {made.key.role.replace('_', ' ')}."
    return pages_of(request).page(request, "secret.html", viewer, place="access", secret=made.token.text, words=words)


@router.post("/access/keys/{key_id}/revoke")
def revoke_key(request: Request, viewer: Maker, fields: Form, key_id: KeyName) -> Response:
    reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        keys.REVOKE,
        lambda unit: keys.revoke(unit, KeyId(key_id)),
        back_to="/console/access",
        done="The key is revoked: it opens nothing any more.",
    )


def _name_in(fields: Mapping[str, str]) -> str:
    name = fields.get("name", "").strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise ValidationFailedError.at("/name", "needed", f"give a name of 1 to {MAX_NAME} printable characters")
    return name


def _role_in(fields: Mapping[str, str]) -> Role:
    try:
        return Role(fields.get("role", ""))
    except ValueError:
        accepted = ", ".join(sorted(persons.PERSONS_ROLES))
        raise ValidationFailedError.at("/role", "unknown", f"is one of: {accepted}") from None


def _tenant_in(fields: Mapping[str, str], viewer: Viewer) -> TenantId | None:
    """Return the form's tenant, or else the viewer's own. The service refuses another tenant's."""
    return TenantId(fields["tenant_id"]) if fields.get("tenant_id") else viewer.principal.tenant_id
