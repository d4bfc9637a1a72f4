"""A job's training as documents for the charts: a line an attempt, a bar a rank, marks at changes."""

from collections.abc import Sequence
from typing import Any, Final

from console.job_bar import is_spoilt
from control.attempts.types import JobRecord
from control.checkpoints.types import CheckpointRecord
from control.jobs.training_views import Curve, StepTimes, TrainingRankRecord, TrainingStepRecord
from control.training.training_progress import history_in
from muster.domain.job.pace import PARTS
from muster.domain.states import TERMINAL_JOB_STATES

REFRESH_S: Final = 5
CHECKPOINT_MARKS: Final = 60
RANK_LINES: Final = 12
REPORTED_CURVES: Final = (
    ("Tokens a second, rank 0", "", "tokens_per_s"),
    ("Gradient norm", "", "grad_norm"),
    ("Memory, rank 0", "MiB", "memory_mib"),
)


def charts_of(
    job: JobRecord,
    curves: Sequence[Curve],
    ranks: Sequence[TrainingRankRecord],
    paces: Sequence[TrainingStepRecord],
    checkpoints: Sequence[CheckpointRecord],
    times: StepTimes | None,
) -> dict[str, Any]:
    """Return ``charts``, which static/charts.js draws, and ``refresh_s``: None once nothing will change any more."""
    marks = [*_attempts(curves), *_checkpoints(curves, checkpoints)]
    charts = [
        {"title": "Loss", "unit": "", "x": "step", "lines": _lines(curves, "loss"), "marks": marks},
        {"title": "Step time", "unit": "s", "x": "step", "lines": _lines(curves, "step_s"), "marks": marks},
    ]
    if times is not None:
        charts.append(_spread(times))
    if len(ranks) > 1:
        charts += _of_ranks(ranks)
    charts += _of_pace(paces)
    return {"charts": charts, "refresh_s": None if job.state in TERMINAL_JOB_STATES else REFRESH_S}


def _spread(times: StepTimes) -> dict[str, Any]:
    """Return the histogram of step times, with its percentiles as a note."""
    shown = ", ".join(
        f"p{share} {_milliseconds(value_s)}"
        for share, value_s in ((50, times.p50_s), (95, times.p95_s), (99, times.p99_s))
    )
    points = [[float(f"{low_s * 1000:.4g}"), number] for low_s, number in times.bars]
    note = f"The newest {times.num_steps:,} steps: {shown}; the last class has all longer ones."
    chart = {"title": "Step times", "unit": "steps", "note": note, "x": "from ms", "is_bars": True, "marks": []}
    return {**chart, "lines": [{"name": "steps", "points": points}]}


def _milliseconds(value_s: float) -> str:
    return f"{value_s * 1000:.4g} ms"


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
        words = f"attempt {curve.number} continues at step {first:,}"
        found.append({"at": first, "words": words, "kind": "change", "label": f"attempt {curve.number}"})
    return found


def _checkpoints(curves: Sequence[Curve], checkpoints: Sequence[CheckpointRecord]) -> list[dict[str, Any]]:
    """Return marks of all checkpoints that must not be used, and the newest others, also where a curve was thinned."""
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


def _of_ranks(ranks: Sequence[TrainingRankRecord]) -> list[dict[str, Any]]:
    """Return a line a rank. Of many ranks the slowest are shown, with one bar for each rank as it is now."""
    shown = sorted(ranks, key=lambda row: (-(row.step_s or 0), row.rank))[:RANK_LINES]
    which = "each rank" if len(shown) == len(ranks) else f"the {len(shown)} slowest ranks"
    shown.sort(key=lambda row: row.rank)
    charts = [
        {"title": f"Loss of {which}", "unit": "", "x": "step", "lines": _rank_lines(shown, 1), "marks": []},
        {"title": f"Step time of {which}", "unit": "s", "x": "step", "lines": _rank_lines(shown, 2), "marks": []},
    ]
    if len(shown) < len(ranks):
        points = [[row.rank, row.step_s] for row in ranks if row.step_s is not None]
        bars: dict[str, Any] = {"title": "Step time by rank, now", "unit": "s", "x": "rank", "is_bars": True}
        charts.append({**bars, "lines": [{"name": "step time", "points": points}], "marks": []})
    return charts


def _of_pace(paces: Sequence[TrainingStepRecord]) -> list[dict[str, Any]]:
    """Return the charts of rank 0 and its newest attempt: the parts of a step, and its other reported values."""
    parts = [(part, _curve(paces, f"{part}_s")) for part in PARTS]
    charts: list[dict[str, Any]] = [
        {
            "title": "Where a step's time goes",
            "unit": "s",
            "x": "step",
            "lines": [{"name": part, "points": points} for part, points in parts if any(value for _, value in points)],
            "marks": [],
        }
    ]
    for title, unit, name in REPORTED_CURVES:
        lines = [{"name": title.lower(), "points": _curve(paces, name)}]
        charts.append({"title": title, "unit": unit, "x": "step", "lines": lines, "marks": []})
    return charts


def _curve(paces: Sequence[TrainingStepRecord], name: str) -> list[list[float]]:
    return [[row.step, row.pace[name]] for row in paces if row.pace is not None and row.pace.get(name) is not None]


def _rank_lines(ranks: Sequence[TrainingRankRecord], place: int) -> list[dict[str, Any]]:
    found = []
    for row in ranks:
        points = [[point[0], point[place]] for point in history_in(row.history).points if point[place] is not None]
        found.append({"name": f"rank {row.rank}", "points": points})
    return found
