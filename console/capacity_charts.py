"""Health and capacity of groups over time: the document of the charts, and the small line next to each group."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from console.figure_charts import line_before
from console.ranges import Stretch
from control.health.rollup_reads import GroupRollup
from muster.domain.times import to_ms

REFRESH_S: Final = 60
WIDTH: Final = 120
HEIGHT: Final = 24
_EDGE: Final = 2


def charts_of(
    past: Sequence[GroupRollup],
    shown: Stretch,
    marks: Sequence[dict[str, Any]] = (),
    earlier: Sequence[GroupRollup] | None = None,
) -> dict[str, Any]:
    """Return what static/charts.js draws of one group's past, the oldest first. ``earlier``: of the period before."""
    span = [to_ms(shown.since), to_ms(shown.until)]
    uses = [("in use", "num_in_use", "accent"), ("reserved", "num_reserved", "calm"), ("free", "num_free", "good")]
    areas = [_line(past, name, field, tone=tone) for name, field, tone in (*uses, ("out", "num_out", "bad"))]
    healthy = {**_line(past, "healthy", "num_healthy", tone="ink"), "is_over": True}
    scores = [("score", "score_tenths", 10), ("mean", "mean_tenths", 10), ("worst GPU", "worst", 1)]
    lines = [_line(past, name, field, parts) for name, field, parts in scores]
    if earlier is not None:
        lines += [line_before(_line(earlier, name, field, parts), shown.length) for name, field, parts in scores]
        in_use = line_before(_line(earlier, "in use", "num_in_use"), shown.length)
        areas.append({**in_use, "tone": "ink", "is_over": True})
    shared: dict[str, Any] = {"x": "time", "marks": list(marks), "range": span}
    return {
        "charts": [
            {"title": "Delivered GPUs by use", "unit": "", "lines": [*areas, healthy], "is_stacked": True, **shared},
            {"title": "Health score", "unit": "", "lines": lines, "bounds": [0, 100], **shared},
        ],
        "refresh_s": REFRESH_S,
    }


def _line(
    past: Sequence[GroupRollup], name: str, field: str, parts: int = 1, tone: str | None = None
) -> dict[str, Any]:
    values = (getattr(each.rollup, field) for each in past)
    points = [
        [to_ms(each.taken_at), value if parts == 1 else value / parts] for each, value in zip(past, values, strict=True)
    ]
    return {"name": name, "points": points, **({} if tone is None else {"tone": tone})}


def sparkline(past: Sequence[tuple[datetime, int]], shown: Stretch) -> str:
    """Return the path of scores in tenths, 0 at the foot and 100 at the top; it breaks where rounds are missing."""
    began, least = shown.since, _gap(shown)
    found: list[str] = []
    last: datetime | None = None
    for taken_at, score_tenths in past:
        is_broken = last is None or taken_at - last > least
        last = taken_at
        x = WIDTH * max((taken_at - began) / shown.length, 0.0)
        y = _EDGE + (HEIGHT - 2 * _EDGE) * (1 - score_tenths / 1000)
        found.append(f"{'M' if is_broken else 'L'}{x:.1f} {y:.1f}")
        if is_broken:
            found.append("h0.5")  # one point alone is drawn, too
    return " ".join(found)


def _gap(shown: Stretch) -> timedelta:
    """Return the time between two rounds from which on some are missing: old ones are kept by the day alone."""
    return timedelta(hours=1.5) if shown.length <= timedelta(days=1) else timedelta(days=1.5)
