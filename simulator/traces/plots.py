"""The charts of a played trace: file names, and each as SVG text."""

from dataclasses import asdict
from typing import Final

from simulator.traces.drawing import Bar, Line, bars, lines
from simulator.traces.report import Report

_DAY_S: Final = 86_400
_CAUSES: Final = {
    "work_done_again": "work done again",
    "restarts": "restarts",
    "checkpoints": "checkpoints",
    "rounding": "rounding to nodes",
    "repairs": "repairs",
    "idle_scattered": "idle, scattered",
    "idle_whole_nodes": "idle, whole nodes",
    "no_demand": "no pending job",
}


def plots_of(report: Report) -> dict[str, str]:
    """Return charts: queue length, utilisation and fragmentation over time; waits by size; GPU-hours lost by cause."""
    days = [span.starts_s / _DAY_S for span in report.over_time]
    percent = [Line("GPUs of jobs", [100 * span.utilisation for span in report.over_time])]
    if report.failures:
        percent.append(Line("GPUs of failed nodes", [100 * span.away for span in report.over_time]))
    scattered = [Line("on nodes partly in use", [100 * span.scattered for span in report.over_time])]
    if len(report.fragmentation.by_level) > 1:
        broken = [100 * span.broken_racks for span in report.over_time]
        scattered.append(Line("on whole nodes of racks partly in use", broken))
    waiting = [Line("jobs", [span.waiting for span in report.over_time])]
    waits = [
        Bar(_sizes(size.min_gpus, size.max_gpus), hours, f"{hours:,.2f} ({size.jobs:,} jobs)")
        for size in report.wait_by_gpus
        for hours in [size.mean_wait_s / 3600]
    ]
    lost = [Bar(_CAUSES[cause], hours, f"{hours:,.0f}") for cause, hours in asdict(report.lost_gpu_hours).items()]
    since = "days since the first submission"
    return {
        "queue-length.svg": lines("Queue length", days, waiting, x_unit=since, y_unit="pending jobs"),
        "utilisation.svg": lines("Utilisation", days, percent, x_unit=since, y_unit="% of the fleet's GPUs"),
        "fragmentation.svg": lines(
            "Fragmentation: idle GPUs next to others in use",
            days,
            scattered,
            x_unit=since,
            y_unit="% of the fleet's GPUs",
        ),
        "waits-by-size.svg": bars("Mean wait by the GPUs of a job", waits, unit="hours"),
        "lost-hours.svg": bars("GPU-hours that did not count, by cause", lost, unit="GPU-hours"),
    }


def _sizes(least: int, most: int | None) -> str:
    if most is None:
        return f"{least:,} GPUs or more"
    if most > least:
        return f"{least:,} to {most:,} GPUs"
    return "1 GPU" if least == 1 else f"{least:,} GPUs"
