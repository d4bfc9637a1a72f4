"""A job's training as documents for the charts: a line an attempt, a bar a rank, marks where something changed."""

from collections.abc import Sequence
from typing import Any, Final

from console.job_life import is_spoilt
from muster.db.models import Checkpoint, Job, TrainingRank
from muster.domain.states import TERMINAL_JOB_STATES
from muster.services.training_views import Curve

REFRESH_S: Final = 5
CHECKPOINT_MARKS: Final = 60


def charts_of(
    job: Job, curves: Sequence[Curve], ranks: Sequence[TrainingRank], checkpoints: Sequence[Checkpoint]
) -> dict[str, Any]:
    """``charts``: what static/charts.js draws. ``refresh_s``: None once nothing will change any more."""
    marks = [*_attempts(curves), *_checkpoints(curves, checkpoints)]
    charts = [
        {"title": "Loss", "unit": "", "x": "step", "lines": _lines(curves, "loss"), "marks": marks},
        {"title": "Step time", "unit": "s", "x": "step", "lines": _lines(curves, "step_s"), "marks": marks},
    ]
    if len(ranks) > 1:
        charts.append(_by_rank("Step time by rank, now", "s", "step_s", ranks))
        charts.append(_by_rank("Loss by rank, now", "", "loss", ranks))
    return {"charts": charts, "refresh_s": None if job.state in TERMINAL_JOB_STATES else REFRESH_S}


def _lines(curves: Sequence[Curve], field: str) -> list[dict[str, Any]]:
    newest = max((curve.number for curve in curves), default=0)
    return [
        {
            "name": f"attempt {curve.number}",
            "is_past": curve.number != newest,
            "points": [[row.step, getattr(row, field)] for row in curve.steps if getattr(row, field) is not None],
        }
        for curve in curves
    ]


def _attempts(curves: Sequence[Curve]) -> list[dict[str, Any]]:
    found = []
    for curve in curves[1:]:
        first = curve.steps[0].step
        words = f"attempt {curve.number} goes on at step {first:,}"
        found.append({"at": first, "words": words, "kind": "change", "label": f"attempt {curve.number}"})
    return found


def _checkpoints(curves: Sequence[Curve], checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """All that must not be used, and the newest of the others. Where a curve was thinned, marks stand all the same."""
    if not curves:
        return []
    spoilt = [row for row in checkpoints if is_spoilt(row)]
    good = [row for row in checkpoints if not is_spoilt(row)]
    return [
        {
            "at": row.step,
            "words": f"checkpoint {row.status}" + (f": {row.reason}" if row.reason else ""),
            "kind": "bad" if is_spoilt(row) else "saved",
        }
        for row in [*spoilt, *good][:CHECKPOINT_MARKS]
    ]


def _by_rank(title: str, unit: str, field: str, ranks: Sequence[TrainingRank]) -> dict[str, Any]:
    points = [[row.rank, getattr(row, field)] for row in ranks if getattr(row, field) is not None]
    return {"title": title, "unit": unit, "x": "rank", "lines": [{"name": title, "points": points}], "marks": []}
