"""Sessions of the console: begun by a person's password or an API key, valid for a working day, ended at once."""

import hmac
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Final

from argon2.exceptions import InvalidHashError, VerifyMismatchError
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.tenants.keys import authenticate
from control.tenants.persons import HASHER
from muster.db.models import ApiKey, ConsoleSession, Person
from muster.db.queries.events import newest_position
from muster.domain.errors import UnauthenticatedError
from muster.domain.ids import KeyId
from muster.domain.principals import Principal, Role, system_principal
from muster.identity import new_id
from muster.tokens import Token, new_token, read_token

BEGIN: Final = declare_action("session.begin")
END: Final = declare_action("session.end")
TOUCH: Final = declare_action("session.touch")

LIFETIME: Final = timedelta(hours=12)
IDLE: Final = timedelta(hours=2)
SEEN_RESOLUTION: Final = timedelta(minutes=1)
_KEEPER: Final = system_principal("sessions")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A signed-in principal. ``name``: as a page greets the person.

    ``events_position``: the newest event's at the time of this check; anything read from now on is at least as new.
    """

    session_id: str
    principal: Principal
    name: str
    expires_at: datetime
    events_position: int


@dataclass(frozen=True, slots=True)
class Holder:
    """The person or key that a session is of. ``expires_at``: when the key ends; None: it does not, or a person."""

    principal: Principal
    name: str
    expires_at: datetime | None


def sign_in_by_password(units: UnitOfWorkFactory, name: str, password: str, *, address: str | None) -> Token:
    """Return a new session's token, for its cookie alone.

    Raises:
        UnauthenticatedError: the same words for an unknown name, a wrong password and a disabled person.
    """
    with units.read() as session:
        person = session.scalar(select(Person).where(Person.name == name))
    _verify(person, password)
    if person is None or person.disabled_at is not None:
        raise UnauthenticatedError
    return _begin(units, _principal_of(person, address), person_id=person.id)


def sign_in_by_key(units: UnitOfWorkFactory, text: str, *, address: str | None) -> Token:
    """Return a new session's token. It opens as long as the key does.

    Raises:
        UnauthenticatedError: as ``keys.authenticate``; and for a host's key, which opens no page.
    """
    principal = authenticate(units, text, address=address, request_id=None)
    if principal.role in {Role.NODE, Role.SERVICE}:
        raise UnauthenticatedError
    return _begin(units, principal)


def resume(units: UnitOfWorkFactory, text: str, *, address: str | None, request_id: str | None) -> SignedIn:
    """Return the principal of this cookie's session.

    Raises:
        UnauthenticatedError: malformed, unknown, ended or over; the person is disabled; the key is revoked or expired.
    """
    token = read_token(text)
    if token is None:
        raise UnauthenticatedError
    now = units.clock()
    with units.read() as session:
        row = session.scalar(select(ConsoleSession).where(ConsoleSession.prefix == token.public))
        if row is None or not hmac.compare_digest(row.secret_sha256, token.digest) or not _is_live(row, now):
            raise UnauthenticatedError
        holder = holder_of(session, row.person_id, row.key_id, now)
        position = newest_position(session)
    if now - row.last_seen_at > SEEN_RESOLUTION:
        _touch(units, row, now)
    principal = replace(holder.principal, address=address, request_id=request_id)
    return SignedIn(row.id, principal, holder.name, row.expires_at, position)


def sign_out(units: UnitOfWorkFactory, signed_in: SignedIn) -> None:
    """End the session: from this commit on its cookie opens nothing."""
    with units.begin(signed_in.principal, END) as unit:
        row = unit.session.get_one(ConsoleSession, signed_in.session_id)
        if row.ended_at is None:
            row.ended_at = unit.now
            unit.audit("session.end", "session", row.id, tenant_id=unit.principal.tenant_id)


@cache
def _nobodys_hash() -> str:
    """Return a hash to verify against where the name is unknown, so that the answer takes as long."""
    return HASHER.hash("no person has this password")


def _verify(person: Person | None, password: str) -> None:
    try:
        HASHER.verify(_nobodys_hash() if person is None else person.password_hash, password)
    except (VerifyMismatchError, InvalidHashError) as fault:
        raise UnauthenticatedError from fault


def _begin(units: UnitOfWorkFactory, principal: Principal, *, person_id: str | None = None) -> Token:
    token = new_token()
    with units.begin(principal, BEGIN) as unit:
        row = ConsoleSession(
            id=new_id("session"),
            prefix=token.public,
            secret_sha256=token.digest,
            created_at=unit.now,
            last_seen_at=unit.now,
            expires_at=unit.now + LIFETIME,
            person_id=person_id,
            key_id=principal.key_id,
            address=principal.address,
        )
        unit.session.add(row)
        unit.audit("session.begin", "session", row.id, tenant_id=principal.tenant_id)
    return token


def _is_live(row: ConsoleSession, now: datetime) -> bool:
    return row.ended_at is None and now < row.expires_at and now - row.last_seen_at <= IDLE


def holder_of(
    session: Session, person_id: str | None, key_id: KeyId | None, now: datetime, *, is_locked: bool = False
) -> Holder:
    """Return the person or, where that is None, the key. ``is_locked``: it stays open until this transaction ends.

    Raises:
        UnauthenticatedError: the person is disabled; the key is revoked or expired.
    """
    lock = {"read": True} if is_locked else None
    if person_id is not None:
        person = session.get_one(Person, person_id, with_for_update=lock)
        if person.disabled_at is not None:
            raise UnauthenticatedError
        return Holder(_principal_of(person, None), person.name, None)
    key = session.get_one(ApiKey, key_id, with_for_update=lock)
    if key.revoked_at is not None or (key.expires_at is not None and key.expires_at <= now):
        raise UnauthenticatedError
    principal = Principal(name=f"key:{key.name}", role=key.role, key_id=key.id, tenant_id=key.tenant_id)
    return Holder(principal, key.name, key.expires_at)


def _principal_of(person: Person, address: str | None) -> Principal:
    return Principal(name=f"person:{person.name}", role=person.role, tenant_id=person.tenant_id, address=address)


def _touch(units: UnitOfWorkFactory, row: ConsoleSession, now: datetime) -> None:
    with units.begin(_KEEPER, TOUCH, quiet=True) as unit:
        unit.session.execute(
            update(ConsoleSession)
            .where(ConsoleSession.id == row.id, ConsoleSession.last_seen_at < now - SEEN_RESOLUTION)
            .values(last_seen_at=now)
            .execution_options(synchronize_session=False)
        )
