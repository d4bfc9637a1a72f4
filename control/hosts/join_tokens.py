"""Join tokens: an operator's permission, valid once and for minutes, that a host of this name may enrol."""

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from sqlalchemy import update

from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from muster.db.errors import ContentionError
from muster.db.models import JoinToken
from muster.domain.errors import ConflictError, ForbiddenError, UnauthenticatedError, ValidationFailedError
from muster.domain.principals import Permission, Principal, Role
from muster.tokens import Token, new_token, read_token

CREATE: Final = declare_action("join_token.create")

LIFETIME: Final = timedelta(minutes=15)
MAX_LIFETIME: Final = timedelta(hours=24)


class JoinTokenRecord(msgspec.Struct, frozen=True):
    """A join token without its secret. ``prefix``: its public part."""

    prefix: str
    host_name: str
    address: str | None
    rack: str | None
    created_by: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class NewJoinToken:
    """``token`` is the secret: it is shown once and stored nowhere."""

    row: JoinTokenRecord
    token: Token


def create(
    unit: UnitOfWork,
    *,
    host_name: str,
    lifetime: timedelta = LIFETIME,
    address: str | None = None,
    rack: str | None = None,
) -> NewJoinToken:
    """Create a token. ``address``: where ranks meet (by default where the host enrols from); ``rack``: its place.

    Raises:
        ValidationFailedError: a lifetime of nothing, or of more than a day.
    """
    unit.principal.require(Permission.NODE_WRITE)
    if not timedelta(0) < lifetime <= MAX_LIFETIME:
        words = f"must be more than 0 and at most {MAX_LIFETIME.total_seconds():.0f} seconds"
        raise ValidationFailedError.at("/expires_in_s", "out_of_range", words)
    token = new_token()
    row = JoinToken(
        prefix=token.public,
        secret_sha256=token.digest,
        host_name=host_name,
        address=address,
        rack=rack,
        created_by=unit.principal.name,
        created_at=unit.now,
        expires_at=unit.now + lifetime,
    )
    unit.session.add(row)
    detail = {"host_name": host_name, "expires_at": row.expires_at.isoformat(), "rack": rack}
    unit.emit("join_token.created", "join_token", token.public, payload=detail)
    unit.audit("join_token.create", "join_token", token.public, detail=detail)
    unit.session.flush()
    return NewJoinToken(record_of(row, JoinTokenRecord), token)


def joining_principal(
    units: UnitOfWorkFactory, text: str, *, address: str | None, request_id: str | None
) -> tuple[Principal, str]:
    """Return the principal of this token, with the right of the operator that made it, and the token's public part.

    Raises:
        UnauthenticatedError: malformed, unknown or wrong, in the same words.
    """
    token = read_token(text)
    if token is None:
        raise UnauthenticatedError("this is no join token of this installation")
    with units.read() as session:
        row = session.get(JoinToken, token.public)
    if row is None or not hmac.compare_digest(row.secret_sha256, token.digest):
        raise UnauthenticatedError("this is no join token of this installation")
    name = f"join-token:{token.public} of {row.created_by}"
    return Principal(name=name, role=Role.OPERATOR, address=address, request_id=request_id), token.public


def use(unit: UnitOfWork, prefix: str, host_name: str) -> JoinToken:
    """Use it up: of two uses at once, one succeeds.

    Raises:
        ForbiddenError: it is for a host of another name.
        UnauthenticatedError: its time is over.
        TokenUsedError: it was used before.
        ContentionError: another used it at this moment; begun again, this unit sees that.
    """
    unit.principal.require(Permission.NODE_WRITE)
    row = unit.session.get_one(JoinToken, prefix)
    if row.host_name != host_name:
        raise ForbiddenError("this join token is for a host of another name", permission=str(Permission.NODE_WRITE))
    if row.expires_at <= unit.now:
        raise UnauthenticatedError("this join token is no longer valid", suggestion="Ask the operator for a new one.")
    if row.used_at is not None:
        raise TokenUsedError("this join token was used before", suggestion="Ask the operator for a new one.")
    used = unit.session.execute(
        update(JoinToken)
        .where(JoinToken.prefix == prefix, JoinToken.used_at.is_(None))
        .values(used_at=unit.now)
        .returning(JoinToken.prefix)
        .execution_options(synchronize_session=False)
    ).first()
    if used is None:
        raise ContentionError("the join token was used at the same moment")
    return row


class TokenUsedError(ConflictError):
    """The token was used. The caller finds out by which host: the same host may repeat its own request."""
