"""Retention of history, and the one round of its keeper: compact settled hours, delete expired rows."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, or_, select, tuple_

from control.core.batches import in_batches
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from control.telemetry.compaction import compact_once
from muster.db.models import StoredSignal, TelemetryChunk, TelemetryGap, TelemetryPlace
from muster.domain.principals import system_principal

SWEEP: Final = declare_action("telemetry.sweep")
BATCH: Final = 2_000
MOST_BATCHES: Final = 25
"""Batches of a round: 200,000 rows of each kind a minute, at a round each 15 s."""
_PRINCIPAL: Final = system_principal("telemetry")


def keep_once(units: UnitOfWorkFactory) -> dict[str, int]:
    """Run one round. Return how many hours were compacted, and how many rows of each kind were deleted."""
    deleted = in_batches(lambda: sweep_once(units), BATCH, MOST_BATCHES)
    return {"compacted": compact_once(units), **deleted}


def sweep_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> dict[str, int]:
    """Drop chunks, gaps and judged signals past ``retention.telemetry_days``, at most ``batch`` of each."""
    with units.begin(_PRINCIPAL, SWEEP, quiet=True) as unit:
        before = unit.now - timedelta(days=active_policy(unit.session).retention.telemetry_days)
        chunk, gap, signal, place = TelemetryChunk, TelemetryGap, StoredSignal, TelemetryPlace
        # The end of a signal of an unknown kind is not known; an agent reports it again while it lasts.
        is_over = or_(signal.is_open.is_(False), signal.judge_fault.is_not(None))
        is_judged = signal.judged_at.is_not(None) & is_over
        return {
            "chunks": _drop(unit, (chunk.node_id, chunk.hour, chunk.schema), chunk.hour < before, batch),
            "gaps": _drop(
                unit, (gap.node_id, gap.boot_id, gap.report_seq, gap.ordinal), gap.received_at < before, batch
            ),
            "signals": _drop(
                unit, (signal.node_id, signal.signal_id), is_judged & (signal.received_at < before), batch
            ),
            "places": _drop(unit, (place.gpu_uuid, place.node_id), place.last_hour < before, batch),
        }


def _drop(unit: UnitOfWork, keys: Sequence[Any], is_over: ColumnElement[bool], batch: int) -> int:
    doomed = select(*keys).where(is_over).limit(batch)
    statement = delete(keys[0].class_).where(tuple_(*keys).in_(doomed)).returning(keys[0])
    return len(unit.session.execute(statement.execution_options(synchronize_session=False)).all())
