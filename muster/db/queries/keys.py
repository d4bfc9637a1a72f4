"""API keys as authentication needs them."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, update
from sqlalchemy.orm import Session

from muster.db.models import ApiKey
from muster.domain.ids import KeyId

USE_RESOLUTION: Final = timedelta(minutes=1)
"""``last_used_at`` is at most this much behind, so that a busy key is not a busy row."""

_COLUMNS: Final = (
    "k.id, k.secret_sha256, k.name, k.role, k.tenant_id, k.node_id, k.expires_at, k.revoked_at, k.last_used_at"
)
BY_PREFIX: Final = f"SELECT {_COLUMNS} FROM api_keys AS k WHERE k.prefix = %(prefix)s"  # noqa: S608  # words of ours
"""The key with this public prefix, live or not."""


def with_key(expression: str) -> str:
    """Return the query for the key with ``prefix`` as ``BY_PREFIX`` gives it, with ``expression`` as ``answer``.

    A CASE keeps PostgreSQL from working for unknown callers: the answer is NULL unless the key's secret has ``digest``,
    the key lives at ``now`` and its role is one of ``roles``.
    """
    opens = """k.secret_sha256 = %(digest)s AND k.revoked_at IS NULL
        AND (k.expires_at IS NULL OR k.expires_at > %(now)s) AND k.role = ANY(%(roles)s)"""
    return f"""
        SELECT {_COLUMNS}, CASE WHEN {opens} THEN {expression} END AS answer
        FROM api_keys AS k WHERE k.prefix = %(prefix)s
    """  # noqa: S608  # words of ours; what a caller sends is bound


def note_use(session: Session, key_id: KeyId, now: datetime) -> None:
    """Remember the use of a key, to ``USE_RESOLUTION``. Leaves ``version`` alone: a use is no edit."""
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < now - USE_RESOLUTION))
        .values(last_used_at=now)
        .execution_options(synchronize_session=False)
    )
