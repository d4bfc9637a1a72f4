"""Retention of history, and the one round of its keeper: compact settled hours, delete expired rows."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy import or_

from control.core.batches import delete_oldest, in_batches
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from control.policy.policies import active_policy
from control.telemetry.compaction import BATCH as HOURS
from control.telemetry.compaction import compact_once
from muster.db.models import StoredSignal, TelemetryChunk, TelemetryGap, TelemetryPlace
from muster.domain.principals import system_principal

SWEEP: Final = declare_action("telemetry.sweep")
BATCH: Final = 2_000
MOST_BATCHES: Final = 25
"""Batches of a round. The next round follows at once where this one has left something."""
_PRINCIPAL: Final = system_principal("telemetry")


def keep_once(units: UnitOfWorkFactory) -> dict[str, int]:
    """Run one round. Return how many hours were compacted, and how many rows of each kind were deleted."""
    deleted = in_batches(lambda: sweep_once(units), BATCH, MOST_BATCHES)
    return {"compacted": compact_once(units), **deleted}


def is_behind(kept: Mapping[str, int]) -> bool:
    """Return whether a round has left something of a kind: the next one is due at once."""
    return any(number >= (HOURS if kind == "compacted" else BATCH * MOST_BATCHES) for kind, number in kept.items())


def sweep_once(units: UnitOfWorkFactory, *, batch: int = BATCH) -> dict[str, int]:
    """Drop chunks, gaps and judged signals past ``retention.telemetry_days``, at most ``batch`` of each."""
    with units.begin(_PRINCIPAL, SWEEP, quiet=True) as unit:
        before = unit.now - timedelta(days=active_policy(unit.session).retention.telemetry_days)
        chunk, gap, signal, place = TelemetryChunk, TelemetryGap, StoredSignal, TelemetryPlace
        # The end of a signal of an unknown kind is not known; an agent reports it again while it lasts.
        is_over = or_(signal.is_open.is_(False), signal.judge_fault.is_not(None))
        is_judged = signal.judged_at.is_not(None) & is_over
        return {
            "chunks": delete_oldest(unit, chunk, chunk.hour, chunk.hour < before, batch),
            "gaps": delete_oldest(unit, gap, gap.received_at, gap.received_at < before, batch),
            "signals": delete_oldest(
                unit, signal, signal.received_at, is_judged & (signal.received_at < before), batch
            ),
            "places": delete_oldest(unit, place, place.last_hour, place.last_hour < before, batch),
        }
