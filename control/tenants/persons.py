"""Persons with access to the console, each with a role, and a password that is stored as argon2id alone."""

import secrets
from dataclasses import dataclass
from typing import Final

from argon2 import PasswordHasher
from sqlalchemy import select, update

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.core.visibility import may_see
from control.tenants.login_keys import revoke_of_person
from control.tenants.read import PersonRecord
from muster.db.models import ConsoleSession, Person, Tenant
from muster.domain.errors import ConflictError, ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import TenantId
from muster.domain.principals import ROLE_PERMISSIONS, Permission, Principal, Role
from muster.identity import new_id

CREATE: Final = declare_action("person.create")
RESET: Final = declare_action("person.reset_password")
DISABLE: Final = declare_action("person.disable")
READ: Final = declare_action("person.read")

TENANT_ROLES: Final = frozenset({Role.TENANT_MEMBER, Role.TENANT_ADMIN})
PERSONS_ROLES: Final = TENANT_ROLES | {Role.OPERATOR, Role.AUDITOR}
PASSWORD_BYTES: Final = 15
"""Bytes of a random password: 120 bits, or 20 characters that a person can paste."""

HASHER: Final = PasswordHasher()
"""argon2id with the parameters of RFC 9106's second recommendation (64 MiB, 3 passes, 4 lanes)."""


@dataclass(frozen=True, slots=True)
class NewPassword:
    """A new password of a person: ``password`` is shown once and stored nowhere."""

    person: PersonRecord
    password: str


def create(unit: UnitOfWork, *, name: str, role: Role, tenant_id: TenantId | None = None) -> NewPassword:
    """Create a person with no more rights than the maker, and a random password.

    Raises:
        ConflictError: the name is taken.
        ForbiddenError: the role holds what the maker does not.
        ValidationFailedError: a role that no person has, a tenant's role without a tenant, no such tenant.
    """
    unit.principal.require(Permission.KEY_WRITE)
    tenant_id = _tenant_of(unit.principal, role, tenant_id)
    _require_place(unit, role, tenant_id)
    if unit.session.scalar(select(Person.id).where(Person.name == name)) is not None:
        message = f"a person named {name} exists already"
        raise ConflictError(message)
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    person = Person(
        id=new_id("person"),
        name=name,
        role=role,
        password_hash=HASHER.hash(password),
        created_at=unit.now,
        tenant_id=tenant_id,
    )
    unit.session.add(person)
    detail = {"name": name, "role": role}
    unit.emit("person.created", "person", person.id, tenant_id=tenant_id, payload=detail)
    unit.audit("person.create", "person", person.id, tenant_id=tenant_id, detail=detail)
    unit.session.flush()
    return NewPassword(record_of(person, PersonRecord), password)


def reset_password(unit: UnitOfWork, person_id: str) -> NewPassword:
    """Set a new random password; every session of the person ends. Raises ``NotFoundError``."""
    person = _writable(unit, person_id)
    password = secrets.token_urlsafe(PASSWORD_BYTES)
    person.password_hash, person.disabled_at = HASHER.hash(password), None
    _end_sessions(unit, person)
    _report(unit, person, "password_reset", "reset_password")
    return NewPassword(record_of(person, PersonRecord), password)


def disable(unit: UnitOfWork, person_id: str) -> PersonRecord:
    """Disable the person, and end their sessions now. Twice is the same as once. Raises ``NotFoundError``."""
    person = _writable(unit, person_id)
    if person.disabled_at is None:
        person.disabled_at = unit.now
        _end_sessions(unit, person)
        _report(unit, person, "disabled", "disable")
    return record_of(person, PersonRecord)


def _writable(unit: UnitOfWork, person_id: str) -> Person:
    """Raise ``NotFoundError`` for a missing person and for another tenant's alike."""
    unit.principal.require(Permission.KEY_WRITE)
    person = unit.session.get(Person, person_id)
    if person is None or not may_see(unit.principal, person.tenant_id):
        raise NotFoundError
    return person


def _tenant_of(principal: Principal, role: Role, requested: TenantId | None) -> TenantId | None:
    if principal.tenant_id is None:
        return requested
    is_more = role not in TENANT_ROLES or not ROLE_PERMISSIONS[role] <= ROLE_PERMISSIONS[principal.role]
    if is_more or requested not in {None, principal.tenant_id}:
        message = "a tenant adds its own persons, with no more rights than the caller has"
        raise ForbiddenError(message, permission=str(Permission.KEY_WRITE))
    return principal.tenant_id


def _require_place(unit: UnitOfWork, role: Role, tenant_id: TenantId | None) -> None:
    if role not in PERSONS_ROLES:
        accepted = ", ".join(sorted(PERSONS_ROLES))
        raise ValidationFailedError.at("/role", "not_for_persons", f"a person is one of: {accepted}")
    if (role in TENANT_ROLES) != (tenant_id is not None):
        raise ValidationFailedError.at("/tenant_id", "by_role", "is needed for a tenant's role, and only for one")
    if tenant_id is not None and unit.session.get(Tenant, tenant_id) is None:
        raise ValidationFailedError.at("/tenant_id", "unknown_tenant", "there is no such tenant")


def _end_sessions(unit: UnitOfWork, person: Person) -> None:
    """End the sessions, and the keys that the person confirmed for the command."""
    unit.session.execute(
        update(ConsoleSession)
        .where(ConsoleSession.person_id == person.id, ConsoleSession.ended_at.is_(None))
        .values(ended_at=unit.now)
    )
    revoke_of_person(unit, person.id)


def _report(unit: UnitOfWork, person: Person, what: str, action: str) -> None:
    detail = {"name": person.name}
    unit.emit(f"person.{what}", "person", person.id, tenant_id=person.tenant_id, payload=detail)
    unit.audit(f"person.{action}", "person", person.id, tenant_id=person.tenant_id, detail=detail)
    unit.session.flush()
