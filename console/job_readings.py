"""Readings of a job's GPUs as documents for the charts, over the same time as its steps."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from console.job_texts import VERDICTS
from console.words import charted
from control.attempts.types import JobRecord
from control.jobs.gpu_readings import METRICS_READ, AttemptReadings
from control.watch.types import VerdictRecord
from muster.domain.gpu.metrics import INDEX, METRICS, NOT_ON_ALL
from muster.domain.states import TERMINAL_JOB_STATES

REFRESH_S: Final = 15
"""Agents report each 10 s."""
_TITLES: Final[Mapping[str, str]] = {
    "sm_clock_mhz": "SM clock",
    "temperature_c": "Temperature",
    "power_w": "Power",
    "utilisation_percent": "Utilisation",
    "tensor_active_percent": "Tensor cores active",
    "nvlink_sent_bytes_per_s": "NVLink sent",
    "nvlink_received_bytes_per_s": "NVLink received",
}


def charts_over_time(
    job: JobRecord, readings: AttemptReadings | None, verdicts: Sequence[VerdictRecord]
) -> dict[str, Any]:
    """Return the charts for static/charts.js: the times of steps, then a chart a metric with a line a GPU."""
    refresh_s = None if job.state in TERMINAL_JOB_STATES else REFRESH_S
    if readings is None or not _has_any(readings):
        return {"charts": [], "refresh_s": refresh_s}
    shared = {
        "x": "time",
        "range": [_ms(readings.since), _ms(readings.until)],
        "marks": [
            {"at": _ms(each.created_at), "words": each.sentence, "kind": "bad", "label": f"✕ {VERDICTS[each.kind]}"}
            for each in verdicts
            if readings.since <= each.created_at <= readings.until
        ],
    }
    steps = [[_ms(row.at), row.step_s] for row in readings.steps if row.step_s is not None]
    charts = [
        {"title": "Step time, rank 0", "unit": "s", "lines": [{"name": "step time", "points": steps}], **shared},
        *({**_chart(readings, name), **shared} for name in METRICS_READ if _is_shown(readings, name)),
    ]
    return {"charts": charts, "refresh_s": refresh_s}


def _has_any(readings: AttemptReadings) -> bool:
    """Return whether a GPU was read: without readings the charts of steps above show all there is."""
    return any(value is not None for gpu in readings.gpus for points in gpu.values.values() for value in points)


def _is_shown(readings: AttemptReadings, name: str) -> bool:
    """Return whether a metric has a chart: one that many GPUs lack has none without a reading."""
    return name not in NOT_ON_ALL or any(value is not None for gpu in readings.gpus for value in gpu.values[name])


def _chart(readings: AttemptReadings, name: str) -> dict[str, Any]:
    since_ms, step_ms = _ms(readings.since), readings.step_s * 1000
    unit, lines = METRICS[INDEX[name]].unit, []
    for gpu in readings.gpus:
        _, values = charted(unit, gpu.values[name])
        points = [[since_ms + round(place * step_ms), value] for place, value in enumerate(values) if value is not None]
        lines.append({"name": f"{gpu.node_name}, GPU {gpu.local_index}", "points": points})
    left_out = readings.num_gpus - len(readings.gpus)
    of = f" of {len(readings.gpus)} of {readings.num_gpus:,} GPUs" if left_out > 0 else ""
    return {"title": f"{_TITLES[name]}{of}", "unit": charted(unit, ())[0], "lines": lines}


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
