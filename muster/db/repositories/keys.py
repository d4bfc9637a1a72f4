"""API keys as authentication needs them."""

from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from muster.db.models import ApiKey
from muster.domain.ids import KeyId

USE_RESOLUTION: Final = timedelta(minutes=1)
"""``last_used_at`` is at most this much behind, so that a busy key is not a busy row."""


def key_by_prefix(session: Session, prefix: str) -> ApiKey | None:
    """The key with this public prefix, live or not."""
    return session.scalars(select(ApiKey).where(ApiKey.prefix == prefix)).one_or_none()


def note_use(session: Session, key_id: KeyId, now: datetime) -> None:
    """Remember the use of a key, to ``USE_RESOLUTION``. Leaves ``version`` alone: a use is no edit."""
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < now - USE_RESOLUTION))
        .values(last_used_at=now)
        .execution_options(synchronize_session=False)
    )
