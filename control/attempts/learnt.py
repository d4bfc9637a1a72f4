"""How long the phases of a job took: hosts report it of each attempt, and the next attempt's limits follow from it.

    attempt 1: host A, host B ── durations of each ── joined ── order of attempt 2 ── limits from its first step on

It is reported by the hosts' own watch. Limits only become longer by it, never shorter than the policy's.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.db.models import Attempt, TrainingHost
from watch.progress.durations import Durations, joined

MOST_ATTEMPTS: Final = 3
"""Earlier attempts that may have learnt something; older ones show another pace."""
_MOST_HOSTS: Final = 64


def note_learnt(host: TrainingHost, durations: Mapping[str, Sequence[float]]) -> bool:
    """Store what a host has learnt. Return whether any of it is known."""
    document = Durations.of_document({phase: list(seconds) for phase, seconds in durations.items()}).document()
    if document:
        host.durations = document
    return bool(document)


def learnt_before(session: Session, attempt: Attempt) -> dict[str, tuple[float, ...]]:
    """Return the durations by phase of the newest earlier attempt with any; of its hosts the longest count."""
    query = (
        select(Attempt.number, TrainingHost.durations)
        .join(Attempt, Attempt.id == TrainingHost.attempt_id)
        .where(
            Attempt.job_id == attempt.job_id,
            Attempt.number < attempt.number,
            Attempt.number >= attempt.number - MOST_ATTEMPTS,
            TrainingHost.durations.is_not(None),
        )
        .order_by(Attempt.number.desc(), TrainingHost.node_id)
        .limit(_MOST_HOSTS)
    )
    rows = session.execute(query).all()
    newest = [durations for number, durations in rows if number == rows[0][0]]
    return joined(Durations.of_document(each or {}) for each in newest)
