"""Completeness of reports about a window: the number of hosts that may still report, and gaps that are known.

A host relays the file of each of its parts in order. So a report of a rank from after the window shows that all earlier
reports have come. A part that was proved clean has ended; its host has relayed the rest by its next heartbeats. If a
report comes later all the same, the hour is computed again (``control.core.late_reports``).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from control.ledger.reading import Window, in_ms
from ledger.periods import Pair, joined

_AWAITS: Final = """
SELECT count(DISTINCT part.node_id)
FROM allocations AS placed
JOIN attempt_hosts AS part ON part.attempt_id = placed.attempt_id
JOIN nodes ON nodes.id = part.node_id
WHERE placed.created_at < :until AND (placed.state <> 'RELEASED' OR placed.released_at > :since)
    AND coalesce(part.clean_at, 'infinity') > :since
    AND NOT EXISTS (
        SELECT FROM training_ranks AS rank WHERE rank.attempt_id = part.attempt_id AND rank.node_id = part.node_id
            AND rank.updated_at >= :until
    ) AND NOT (
        part.clean_at IS NOT NULL
        AND coalesce(nodes.last_heartbeat_at, '-infinity') > part.clean_at + interval '2 minutes'
    ) AND NOT (
        coalesce(nodes.last_heartbeat_at, '-infinity') > CAST(:until AS timestamptz) + interval '2 minutes'
        AND NOT EXISTS (
            SELECT FROM training_ranks AS rank WHERE rank.attempt_id = part.attempt_id AND rank.node_id = part.node_id
        )
    ) AND EXISTS (SELECT FROM gpus WHERE gpus.node_id = part.node_id AND gpus.standing <> 'RETIRED')
"""
_DROPPED: Final = f"""
SELECT node_id, {in_ms("greatest(from_at, :since)")}, {in_ms("least(until_at, :until)")} FROM telemetry_gaps
WHERE received_at > :since AND from_at < :until AND until_at > :since ORDER BY node_id, from_at
"""  # noqa: S608  # words of ours
_RESTORED: Final = f"""
SELECT {in_ms("CAST(payload ->> 'lost_since' AS timestamptz)")}, {in_ms("at")} FROM events
WHERE subject_id = 'cluster' AND kind = 'system.restored' AND at > :since
    AND CAST(payload ->> 'lost_since' AS timestamptz) < :until ORDER BY at
"""  # noqa: S608  # words of ours


def num_awaited(window: Window) -> int:
    """Return how many hosts may still report about the window."""
    return int(window.rows(_AWAITS)[0][0])


def gaps_of(window: Window) -> Mapping[str, Any]:
    """Return the times of which reports are lost, in milliseconds since 1970.

    ``nodes``: reports that an agent had to drop, by host. ``restores``: what the database forgot by a restore.
    """
    dropped: dict[str, list[Pair]] = {}
    for node_id, from_ms, until_ms in window.rows(_DROPPED):
        dropped.setdefault(node_id, []).append((from_ms, until_ms))
    restores = [(max(start, window.start_ms), min(end, window.end_ms)) for start, end in window.rows(_RESTORED)]
    return _named(dropped, restores)


def joined_gaps(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the gaps of an hour by two computations: a gap stays when retention has dropped the report of it."""
    earlier, later = before.get("nodes", {}), now.get("nodes", {})
    nodes = {node_id: [*earlier.get(node_id, ()), *later.get(node_id, ())] for node_id in {**earlier, **later}}
    return _named(nodes, [*before.get("restores", ()), *now.get("restores", ())])


def _named(nodes: Mapping[str, Iterable[Pair]], restores: Iterable[Pair]) -> dict[str, Any]:
    """Return the gaps as an hour stores them: periods as lists, in their order and disjoint; no name without any."""
    by_node = {node_id: _listed(own) for node_id, own in nodes.items()}
    named: dict[str, Any] = {"nodes": {node_id: own for node_id, own in by_node.items() if own}}
    named["restores"] = _listed(restores)
    return {name: found for name, found in named.items() if found}


def _listed(periods: Iterable[Pair]) -> list[list[int]]:
    return [list(period) for period in joined((start_ms, end_ms) for start_ms, end_ms in periods)]
