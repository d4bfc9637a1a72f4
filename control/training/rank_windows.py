"""Own compute and waits of ranks by windows of steps, folded from a batch of reports and stored with each rank's row.

The window that a rank is in is small and changes with each report. The closed ones are read and written only when one
more is over, about every ten seconds.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.db.models import TrainingRank
from muster.domain.ids import AttemptId
from watch.stragglers.windows import Folding, RankWindows, Window

Reports = Sequence[tuple[int, Mapping[str, Any]]]
"""Reports of pace of one rank in their order: the step and the figures."""


def folded(
    session: Session, attempt_id: AttemptId, reports: Mapping[int, Reports], window_s: float, now: datetime
) -> dict[int, dict[str, Any]]:
    """Return the columns of each rank's row that its reports change."""
    if not reports:
        return {}
    query = select(TrainingRank.rank, TrainingRank.open_window)
    query = query.where(TrainingRank.attempt_id == attempt_id, TrainingRank.rank.in_(reports))
    before = {rank: Folding.of_document(stored) for rank, stored in session.execute(query)}
    found: dict[int, dict[str, Any]] = {}
    closed: dict[int, list[tuple[Folding, Window]]] = {}
    for rank, told in reports.items():
        state = before.get(rank, Folding())
        for step, pace in told:
            after, window = state.with_pace(step, pace, window_s)
            if window is not None:
                closed.setdefault(rank, []).append((state, window))
            state = after
        if state.size:
            found[rank] = {"open_window": state.document()}
    for rank, windows in _lengthened(session, attempt_id, closed).items():
        found[rank] |= {"windows": windows.document(), "windows_at": now}
    return found


def _lengthened(
    session: Session, attempt_id: AttemptId, closed: Mapping[int, Sequence[tuple[Folding, Window]]]
) -> dict[int, RankWindows]:
    if not closed:
        return {}
    query = select(TrainingRank.rank, TrainingRank.windows)
    query = query.where(TrainingRank.attempt_id == attempt_id, TrainingRank.rank.in_(closed))
    known: dict[int, dict[str, Any] | None] = dict(session.execute(query).all())
    found = {}
    for rank, windows in closed.items():
        whole = RankWindows.of_document(rank, known.get(rank))
        for state, window in windows:
            whole = whole.with_window(state.size, state.place, window)
        found[rank] = whole
    return found
