"""Sign-ins of the command by the console's session.

The command asks for a code and waits (`begin`). A person who is signed in to the console compares the code and confirms
or denies it (`decide`). The command then fetches a key, once (`take`), with the role of that person or key, and no
longer life than either. It is a device authorisation as of RFC 8628: the waiting side proves itself by a token of its
own, so that the code alone gives nothing.
"""

import hmac
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy import Select, delete, select

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.tenants.keys import NewKey, store_key
from control.tenants.login_keys import revoke_key
from control.tenants.sessions import holder_of
from muster.db.models import ApiKey, CommandLogin, ConsoleSession
from muster.domain.errors import ForbiddenError, NotFoundError, RateLimitedError, UnauthenticatedError
from muster.domain.logins import (
    CODE_LETTERS,
    KEY_LIFETIME,
    LETTERS,
    LIFETIME,
    OPEN_MAX,
    OPEN_OF_NETWORK,
    TAKEN_WITHIN,
    LoginState,
    code_in,
)
from muster.domain.networks import network_of
from muster.domain.principals import Role, system_principal
from muster.identity import new_id
from muster.tokens import Token, new_token, read_token

BEGIN: Final = declare_action("login.begin")
DECIDE: Final = declare_action("login.decide")
TAKE: Final = declare_action("login.take")
SIGN_OUT: Final = declare_action("login.sign_out")

KEPT: Final = timedelta(days=1)
"""Time for which a code that made no key stays, for a person who looks for it."""
_AGAIN: Final = "Compare it with the terminal. A code lasts ten minutes and is used once: `muster login` shows another."
_NEW: Final = "Type `muster login` again."
_KEEPER: Final = system_principal("logins")


class CommandLoginRecord(msgspec.Struct, frozen=True):
    """A sign-in that waits. ``device`` and ``address``: as the command names itself, and from where it asked."""

    id: str
    code: str
    device: str
    address: str | None
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class StartedLogin:
    """``token`` is the waiting command's secret, ``login.code`` is what a person compares."""

    login: CommandLoginRecord
    token: Token


@dataclass(frozen=True, slots=True)
class Taken:
    """The state; ``made`` with the one answer that hands the key out."""

    state: LoginState
    made: NewKey | None = None


def begin(units: UnitOfWorkFactory, *, device: str, address: str | None) -> StartedLogin:
    """Store a new code. Anyone may ask, so the number of open codes is bounded, and old ones go.

    Raises:
        RateLimitedError: too many codes of this address wait.
    """
    token = new_token()
    with units.begin(_KEEPER, BEGIN, quiet=True) as unit:
        expired = CommandLogin.key_id.is_(None), CommandLogin.expires_at < unit.now - KEPT
        unit.session.execute(delete(CommandLogin).where(*expired).execution_options(synchronize_session=False))
        _make_room(unit, network_of(address))
        row = CommandLogin(
            id=new_id("login"),
            code="".join(secrets.choice(LETTERS) for _ in range(CODE_LETTERS)),
            prefix=token.public,
            secret_sha256=token.digest,
            device=device,
            created_at=unit.now,
            expires_at=unit.now + LIFETIME,
            address=address,
        )
        unit.session.add(row)
        unit.session.flush()
        return StartedLogin(record_of(row, CommandLoginRecord), token)


def _make_room(unit: UnitOfWork, network: str) -> None:
    """End the oldest code of the network that has the most, where the most codes wait: no caller locks out others."""
    is_open = CommandLogin.key_id.is_(None), CommandLogin.decided_at.is_(None), CommandLogin.expires_at > unit.now
    query = select(CommandLogin.id, CommandLogin.address).where(*is_open).order_by(CommandLogin.created_at)
    waiting: dict[str, list[str]] = {}
    for login_id, address in unit.session.execute(query.order_by(CommandLogin.id)):
        waiting.setdefault(network_of(address), []).append(login_id)
    if len(waiting.get(network, ())) >= OPEN_OF_NETWORK:
        raise RateLimitedError("too many sign-ins from this address wait for their confirmation", retry_after_s=60)
    if sum(map(len, waiting.values())) >= OPEN_MAX:
        oldest = max(waiting.values(), key=len)[0]
        ended = delete(CommandLogin).where(CommandLogin.id == oldest, *is_open)
        unit.session.execute(ended.execution_options(synchronize_session=False))


def find(units: UnitOfWorkFactory, text: str) -> CommandLoginRecord:
    """Return the sign-in that waits under a code, as it was typed.

    Raises:
        NotFoundError: no code, or one that is unknown, decided or over.
    """
    with units.read() as session:
        row = session.scalar(_waiting(text, units.clock()))
        if row is None:
            raise NotFoundError("no sign-in waits under this code", suggestion=_AGAIN)
        return record_of(row, CommandLoginRecord)


def decide(unit: UnitOfWork, text: str, *, session_id: str, is_confirmed: bool) -> CommandLoginRecord:
    """Confirm or deny a code, once, as the holder of a session of the console.

    Raises:
        NotFoundError: as ``find``.
        ForbiddenError: the session is neither a person's nor a key's that may have one.
    """
    if unit.principal.role in {Role.NODE, Role.SERVICE}:
        raise ForbiddenError("only a person confirms a sign-in")
    row = unit.session.scalar(_waiting(text, unit.now).with_for_update())
    if row is None:
        raise NotFoundError("no sign-in waits under this code", suggestion=_AGAIN)
    holder = unit.session.get_one(ConsoleSession, session_id)
    row.decided_at, row.is_confirmed = unit.now, is_confirmed
    row.person_id, row.holder_key_id = holder.person_id, holder.key_id
    event, action = ("login.confirmed", "login.confirm") if is_confirmed else ("login.denied", "login.deny")
    detail = {"device": row.device, "address": row.address}
    unit.emit(event, "login", row.id, tenant_id=unit.principal.tenant_id, payload=detail)
    unit.audit(action, "login", row.id, tenant_id=unit.principal.tenant_id, detail=detail)
    unit.session.flush()
    return record_of(row, CommandLoginRecord)


def take(units: UnitOfWorkFactory, text: str, *, address: str | None, request_id: str | None) -> Taken:
    """Return the state of the sign-in whose token this is, and its key with the first answer after the confirmation.

    Raises:
        UnauthenticatedError: malformed, unknown or wrong, or its key was fetched before.
    """
    token = read_token(text)
    if token is None:
        raise UnauthenticatedError("this is no sign-in of this installation")
    with units.read() as session:
        row = session.scalar(select(CommandLogin).where(CommandLogin.prefix == token.public))
        if row is None or not hmac.compare_digest(row.secret_sha256, token.digest) or row.key_id is not None:
            raise UnauthenticatedError("this sign-in is unknown, or it was used", suggestion=_NEW)
        state = _state_of(row, units.clock())
        if state is not LoginState.CONFIRMED:
            return Taken(state)
        holder = holder_of(session, row.person_id, row.holder_key_id, units.clock())
    principal = replace(holder.principal, address=address, request_id=request_id)
    with units.begin(principal, TAKE) as unit:
        return _made(unit, row.id)


def sign_out(unit: UnitOfWork) -> bool:
    """Revoke the calling key if a sign-in made it, and return whether it did. Another key may be in use elsewhere."""
    key = None if unit.principal.key_id is None else unit.session.get(ApiKey, unit.principal.key_id)
    if key is None:
        return False
    if unit.session.scalar(select(CommandLogin.id).where(CommandLogin.key_id == key.id)) is None:
        return False
    if key.revoked_at is None:
        revoke_key(unit, key)
    return True


def _waiting(text: str, now: datetime) -> Select[CommandLogin]:
    is_open = CommandLogin.decided_at.is_(None), CommandLogin.expires_at > now
    return select(CommandLogin).where(CommandLogin.code == code_in(text), *is_open)


def _state_of(row: CommandLogin, now: datetime) -> LoginState:
    if row.decided_at is None:
        return LoginState.PENDING if now < row.expires_at else LoginState.EXPIRED
    if not row.is_confirmed:
        return LoginState.DENIED
    return LoginState.CONFIRMED if now - row.decided_at <= TAKEN_WITHIN else LoginState.EXPIRED


def _made(unit: UnitOfWork, login_id: str) -> Taken:
    """Make the key. Of two that fetch it at once, one gets it."""
    row = unit.session.scalars(select(CommandLogin).where(CommandLogin.id == login_id).with_for_update()).one()
    if row.key_id is not None:
        raise UnauthenticatedError("this sign-in was used", suggestion=_NEW)
    holder = holder_of(unit.session, row.person_id, row.holder_key_id, unit.now, is_locked=True)
    ends_at = unit.now + KEY_LIFETIME
    made = store_key(
        unit,
        name=f"command-{row.code.lower()}",
        role=unit.principal.role,
        tenant_id=unit.principal.tenant_id,
        expires_at=ends_at if holder.expires_at is None else min(ends_at, holder.expires_at),
        login=row.id,
        device=row.device,
    )
    row.key_id = made.key.id
    unit.session.flush()
    return Taken(LoginState.CONFIRMED, made)
