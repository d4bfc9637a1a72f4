"""Advice about attempts that use their GPUs little, and its table on the page of utilisation."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from console.tables import Column, Table
from control.ledger.low_use import LowUse
from muster.domain.amounts import gpu_hours


def advice_about(use: LowUse) -> str:
    """Return what to do, in sentences; between backquotes are commands."""
    return " ".join(_sentences(use))


def _sentences(use: LowUse) -> Iterator[str]:
    if use.idle_since is not None:
        yield f"Its GPUs have done nothing since {_time(use.idle_since)}."
        if use.stops_at is not None:
            yield f"Unless they work before {_time(use.stops_at)}, it is stopped and its job HELD."
        yield f"If it waits for nothing, end it: `muster job cancel {use.job_id}`."
        return
    if use.num_unused:
        yield f"{use.num_unused} of {use.num_read} GPUs do nothing now:"
        yield "see whether each rank has its own GPU (`CUDA_VISIBLE_DEVICES`, local rank), or ask for fewer GPUs."
    elif use.is_low:
        yield f"See whether it waits for data or saves: `muster job explain {use.job_id}`."
    if use.is_often_idle and use.idle_share is not None:
        yield f"{use.idle_share:.0%} of its time in the last day was neither steps nor saves:"
        yield "ask for a shorter wall time, or end the job once its work is done."


ADVICE: Final = Table[LowUse](
    "advice",
    (
        Column("job", "Job", lambda each: each.job_name),
        Column("job_id", "Job", lambda each: each.job_id, is_shown=False),
        Column("gpus", "GPUs", lambda each: each.num_gpus, is_number=True),
        Column("utilisation", "Utilisation now", lambda each: each.mean_percent, is_number=True),
        Column("unused", "Unused now", lambda each: each.num_unused if each.num_read else None, is_number=True),
        Column("idle_hours", "Idle in the last day", lambda each: gpu_hours(each.idle_ms), is_number=True),
        Column("idle_since", "Idle since", lambda each: each.idle_since),
        Column("advice", "What to do", advice_about, is_sortable=False),
    ),
    "-idle_hours",
)


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
