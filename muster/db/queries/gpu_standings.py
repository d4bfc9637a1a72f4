"""Scores and standings of many GPUs at once: as they have versions, the ORM would send a statement for each."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ARRAY, TIMESTAMP, Integer, Text, bindparam, text
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from muster.db.models import Gpu
from muster.db.sessions import note_change

_WRITTEN: Final = ("standing", "origin_standing", "standing_since", "score", "score_valid_until", "judge_at")
_TIMES: Final = ARRAY(TIMESTAMP(timezone=True))
_WRITE: Final = text("""
UPDATE gpus SET standing = new.standing, origin_standing = new.origin_standing, standing_since = new.standing_since,
    score = new.score, score_valid_until = new.score_valid_until, judge_at = new.judge_at, version = gpus.version + 1
FROM unnest(:uuid, :standing, :origin_standing, :standing_since, :score, :score_valid_until, :judge_at)
    AS new (uuid, standing, origin_standing, standing_since, score, score_valid_until, judge_at)
WHERE gpus.uuid = new.uuid
""").bindparams(
    bindparam("uuid", type_=ARRAY(Text)),
    bindparam("standing", type_=ARRAY(Text)),
    bindparam("origin_standing", type_=ARRAY(Text)),
    bindparam("standing_since", type_=_TIMES),
    bindparam("score", type_=ARRAY(Integer)),
    bindparam("score_valid_until", type_=_TIMES),
    bindparam("judge_at", type_=_TIMES),
)


def write_standings(session: Session, gpus: Sequence[Gpu]) -> None:
    """Write the session's changes of these GPUs, which it has locked. Afterwards they count as flushed."""
    dirty = session.dirty  # made again at each access
    changed = [gpu for gpu in gpus if gpu in dirty and session.is_modified(gpu)]
    if not changed:
        return
    columns: dict[str, list[Any]] = {name: [_plain(getattr(gpu, name)) for gpu in changed] for name in _WRITTEN}
    note_change(session)
    with session.no_autoflush:
        session.execute(_WRITE, {"uuid": [gpu.uuid for gpu in changed], **columns})
    for gpu in changed:
        for name in _WRITTEN:
            set_committed_value(gpu, name, getattr(gpu, name))
        set_committed_value(gpu, "version", gpu.version + 1)


def _plain(value: Any) -> str | int | datetime | None:
    return str(value) if isinstance(value, str) else value
