"""Facts of pending jobs in a window: from when to when any waits for GPUs, and by which binding reason."""

from collections.abc import Iterable
from typing import Final

from control.ledger.reading import Window, in_ms
from ledger.facts import Wait
from muster.db.stored_values import member_of
from muster.domain.job.wait_reasons import WaitReason

NOT_CONSIDERED: Final = "not_considered"
"""Reason of a job that no cycle has considered yet."""
_WAITS: Final = f"""
WITH pending AS (
    SELECT id, created_at, least(finished_at, :until) AS over_at FROM jobs
    WHERE created_at < :until AND (state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') OR finished_at > :since)
), dated AS (
    SELECT pending.id, moment.at, moment.number, moment.binding, pending.over_at
    FROM pending CROSS JOIN LATERAL (
        SELECT pending.created_at AS at, 0::bigint AS number, ''::text AS binding
        UNION ALL (
            SELECT at, id, binding FROM job_wait_changes WHERE job_id = pending.id AND at > :since AND at < :until
        ) UNION ALL (
            SELECT at, id, binding FROM job_wait_changes WHERE job_id = pending.id AND at <= :since
            ORDER BY at DESC, id DESC LIMIT 1
        ) UNION ALL
            SELECT placed_at, 9223372036854775807, NULL FROM attempts
            WHERE attempts.job_id = pending.id AND placed_at < :until
    ) AS moment
), spans AS (
    SELECT binding, at, coalesce(lead(at) OVER (PARTITION BY id ORDER BY at, number), over_at) AS next_at FROM dated
)
SELECT {in_ms("at")}, {in_ms("next_at")}, binding FROM spans
WHERE binding IS NOT NULL AND next_at > greatest(at, :since) ORDER BY 1, 2, 3
"""  # noqa: S608  # words of ours


def waits_of(window: Window) -> tuple[Wait, ...]:
    """Return disjoint waits: of several jobs that wait at one moment the one counts whose wait began first.

    This is what ``ledger.claims.settle`` would choose; made here once, it is not made for each GPU.
    """
    rows = ((start_ms, end_ms, _reason(binding)) for start_ms, end_ms, binding in window.rows(_WAITS))
    return tuple(_disjoint(rows))


def _disjoint(rows: Iterable[tuple[int, int, str]]) -> Iterable[Wait]:
    """Yield the waits, which come in the order of their begin, without what an earlier one covers."""
    covered_ms: int | None = None
    for start_ms, end_ms, reason in rows:
        from_ms = start_ms if covered_ms is None else max(start_ms, covered_ms)
        if end_ms > from_ms:
            yield Wait(from_ms, end_ms, reason)
            covered_ms = end_ms


def _reason(binding: str) -> str:
    """Return the reason's present value. One that only another release knows is kept as it is."""
    if not binding:
        return NOT_CONSIDERED
    try:
        return member_of(WaitReason, binding).value
    except ValueError:
        return binding
