"""API keys as authentication needs them."""

from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, Table, bindparam, or_, select, update
from sqlalchemy.orm import Session

from muster.db.models import ApiKey
from muster.domain.ids import KeyId

USE_RESOLUTION: Final = timedelta(minutes=1)
"""``last_used_at`` is at most this much behind, so that a busy key is not a busy row."""

_KEYS: Final[Table] = ApiKey.metadata.tables[ApiKey.__tablename__]
BY_PREFIX: Final[Select[Any]] = select(_KEYS).where(_KEYS.c.prefix == bindparam("prefix"))
"""The key with this public prefix, live or not: a row with its columns. Made once, since every request asks for one."""


def note_use(session: Session, key_id: KeyId, now: datetime) -> None:
    """Remember the use of a key, to ``USE_RESOLUTION``. Leaves ``version`` alone: a use is no edit."""
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < now - USE_RESOLUTION))
        .values(last_used_at=now)
        .execution_options(synchronize_session=False)
    )
