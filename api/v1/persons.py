"""Routes of persons who sign in to the console."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from api.access_conditions import AccessConditions
from api.bodies import described_by, json_body
from api.changes import Answer, Changing
from api.lists import Cursor, ManyAPage, PageRequest
from api.permissions import requires
from api.reading import require_id
from api.views import time_of
from control.core.paging import NameOrder
from control.tenants import persons, read
from control.tenants.read import PersonRecord
from muster import documents
from muster.domain.ids import TenantId
from muster.domain.principals import Permission, Principal, Role
from muster.domain.strict import Name, StrictModel, Text

router = APIRouter(tags=["persons"])


class NewPerson(StrictModel):
    name: Name
    role: Annotated[Role, Field(strict=False)]
    tenant_id: Text | None = None


@router.post(
    "/persons", response_model=documents.PersonWithPassword, status_code=201, openapi_extra=described_by(NewPerson)
)
def create_person(
    principal: Annotated[Principal, requires(Permission.KEY_WRITE)],
    wanted: Annotated[NewPerson, json_body(NewPerson)],
    change: Changing,
) -> JSONResponse:
    """Create a person; ``password`` is in this answer alone, so no Idempotency-Key is kept for it."""
    tenant_id = None if wanted.tenant_id is None else TenantId(wanted.tenant_id)
    return change.without_key().run(
        principal,
        persons.CREATE,
        lambda unit: persons.create(unit, name=wanted.name, role=wanted.role, tenant_id=tenant_id),
        lambda made: Answer(_with_password(made), 201),
    )


@router.get("/persons")
def list_persons(
    request: Request,
    principal: Annotated[Principal, requires(Permission.KEY_READ)],
    where: Annotated[AccessConditions, Depends()],
    order: Annotated[NameOrder, Query()] = NameOrder.NAME,
    cursor: Cursor = None,
    limit: ManyAPage = read.MOST,
) -> documents.PersonPage:
    """Return persons, also disabled ones, by name unless ``order`` says otherwise."""
    wanted = where.wanted
    return PageRequest(request, principal, read.PERSON_SORTS[order], cursor, limit).answer(
        persons.READ,
        {"path": "persons", **where.of_cursor, "order": order, "who": principal.tenant_id},
        lambda unit, part: read.list_persons(unit, wanted, part),
        person_view,
    )


@router.post("/persons/{person_id}/reset-password", response_model=documents.PersonWithPassword)
def reset_password(
    person_id: str, principal: Annotated[Principal, requires(Permission.KEY_WRITE)], change: Changing
) -> JSONResponse:
    """Set a new password, in this answer alone; every session of the person ends."""
    found_id = require_id("person", person_id)
    return change.without_key().run(
        principal,
        persons.RESET,
        lambda unit: persons.reset_password(unit, found_id),
        lambda made: Answer(_with_password(made)),
    )


@router.post("/persons/{person_id}/disable", response_model=documents.ChangedPerson)
def disable_person(
    person_id: str, principal: Annotated[Principal, requires(Permission.KEY_WRITE)], change: Changing
) -> JSONResponse:
    """Disable a person: they sign in no more, and their sessions end."""
    found_id = require_id("person", person_id)
    return change.run(
        principal,
        persons.DISABLE,
        lambda unit: persons.disable(unit, found_id),
        lambda person: Answer(person_view(person)),
    )


def person_view(person: PersonRecord) -> documents.Person:
    return {
        "id": person.id,
        "name": person.name,
        "role": person.role,
        "tenant_id": person.tenant_id,
        "created_at": time_of(person.created_at),
        "disabled_at": time_of(person.disabled_at),
    }


def _with_password(made: persons.NewPassword) -> dict[str, object]:
    return {**person_view(made.person), "password": made.password}
