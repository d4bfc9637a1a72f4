"""One key of one principal never makes two (I12)."""

from datetime import datetime
from typing import Any

from sqlalchemy import delete, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from muster.db.errors import LOCK_TIMEOUT, sqlstate
from muster.db.models import IdempotencyKey
from muster.domain.errors import RequestInFlightError


def claim_key(
    session: Session, *, scope: str, key: str, method_path: str, body_sha256: bytes, now: datetime
) -> IdempotencyKey | None:
    """Claim a key.

    None: the key is ours in this transaction; ``store_answer`` before it ends. Else the earlier answer.

    Waits while another transaction holds the same key: if that one fails, the key becomes ours.

    Raises:
        RequestInFlightError: the other one took longer than our lock timeout.
    """
    fresh = insert(IdempotencyKey).values(
        principal_scope=scope, key=key, method_path=method_path, body_sha256=body_sha256, created_at=now
    )
    try:
        # On the connection, past the unit's bookkeeping: a key alone is no change of state (I18).
        claimed = session.connection().execute(fresh.on_conflict_do_nothing().returning(IdempotencyKey.key)).first()
    except OperationalError as error:
        if sqlstate(error) != LOCK_TIMEOUT:
            raise
        raise RequestInFlightError(retry_after_s=1) from error
    if claimed is not None:
        return None
    return session.get_one(IdempotencyKey, (scope, key), populate_existing=True)


def store_answer(
    session: Session,
    *,
    scope: str,
    key: str,
    status: int,
    body: dict[str, Any] | None,
    etag: str | None = None,
    location: str | None = None,
) -> None:
    """Store the answer to every repetition of the request."""
    # On the connection, as in ``claim_key``: an answer alone is no change of state (I18).
    session.connection().execute(
        update(IdempotencyKey)
        .where(IdempotencyKey.principal_scope == scope, IdempotencyKey.key == key)
        .values(status=status, body=body, etag=etag, location=location)
    )


def forget_before(session: Session, moment: datetime) -> None:
    """Drop the keys of requests older than the policy's ``idempotency_hours``."""
    session.execute(
        delete(IdempotencyKey).where(IdempotencyKey.created_at < moment).execution_options(synchronize_session=False)
    )
