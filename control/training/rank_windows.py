"""Own compute and waits of ranks by windows of steps, folded from a batch of reports and stored with each rank's row.

The window that a rank is in is small and changes with each report. The closed ones are read and written only when one
more is over, about every ten seconds. Then utilisation and power of the rank's GPU are read, by one statement a host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.db.models import TrainingRank
from muster.domain.ids import AttemptId
from watch.stragglers.windows import Folding, RankWindows, Window


class GpuFigures(Protocol):
    """What a host's agent measured of the GPUs of its ranks."""

    def models(self) -> Mapping[int, str]:
        """Return the model of each rank's GPU."""

    def figures(self, lasted_s: Mapping[int, float]) -> Mapping[int, Mapping[str, float]]:
        """Return the figures of each rank whose window ends now and had lasted for so many seconds."""


Reports = Sequence[tuple[int, Mapping[str, Any]]]
"""Reports of pace of one rank in their order: the step and the figures."""
Closed = Sequence[tuple[Folding, Window]]
"""Windows of one rank that are over, each with the state before."""


def folded(
    session: Session,
    attempt_id: AttemptId,
    reports: Mapping[int, Reports],
    window_s: float,
    now: datetime,
    gpus: GpuFigures,
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
    for rank, windows in _lengthened(session, attempt_id, _measured(closed, gpus), gpus).items():
        found[rank] |= {"windows": windows.document(), "windows_at": now}
    return found


def _measured(closed: Mapping[int, Closed], gpus: GpuFigures) -> Mapping[int, Closed]:
    """Return the windows with the figures of their GPUs.

    Of several windows of one rank in a batch, as after an outage, it is not known which of them a reading is of.
    """
    alone = {rank: windows[0][1] for rank, windows in closed.items() if len(windows) == 1 and windows[0][1].is_plain}
    if not alone:
        return closed
    lasted_s = {rank: each.lasted_s for rank, each in alone.items()}
    figures = gpus.figures(lasted_s)
    measured = {rank: [(closed[rank][0][0], alone[rank].with_readings(of_rank))] for rank, of_rank in figures.items()}
    return {**closed, **measured}


def _lengthened(
    session: Session, attempt_id: AttemptId, closed: Mapping[int, Closed], gpus: GpuFigures
) -> dict[int, RankWindows]:
    if not closed:
        return {}
    query = select(TrainingRank.rank, TrainingRank.windows)
    query = query.where(TrainingRank.attempt_id == attempt_id, TrainingRank.rank.in_(closed))
    known: dict[int, dict[str, Any] | None] = dict(session.execute(query).all())
    found = {}
    is_new = any(known.get(rank) is None for rank in closed)
    models = gpus.models() if is_new else {}
    for rank, windows in closed.items():
        whole = RankWindows.of_document(rank, known.get(rank))
        whole = replace(whole, model=models.get(rank, whole.model))
        for state, window in windows:
            whole = whole.with_window(state.size, state.place, window)
        found[rank] = whole
    return found
