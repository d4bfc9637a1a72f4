"""Good and bad events of objectives by five minutes, counted from jobs, attempts, checkpoints and steps.

One statement counts all objectives of an indicator. It replaces the rows of its time, so it can be repeated. Almost
all moments are of the control plane's own clock; what is reported later than ``RECOUNT`` is not counted::

    success             jobs.finished_at; events job.held after a fault of the infrastructure
    start_latency       the first start, or the moment at which it was too late
    step_latency        five minutes of an attempt, by at most its newest steps
    checkpoint_success  events checkpoint.verified against checkpoint.failed and checkpoint.rejected
    resume_success      the begin of an attempt's training where a checkpoint is there, or its end by a damaged one
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.orm import Session

from control.checkpoints.checkpoints import STALE
from muster.domain.exit.causes import CAUSE_RULES, Budget
from muster.domain.policy.objectives import BUCKET_S, Indicator, ObjectivePolicy

BUCKET: Final = timedelta(seconds=BUCKET_S)
RECOUNT: Final = timedelta(minutes=30)
NEWEST_STEPS: Final = 1000
"""At most so many steps of an attempt are read: in a fast training they suffice for a p95."""
LEAST_STEPS: Final = 20
"""Fewer steps have no p95."""
SLOW_FACTOR: Final = 2
"""A p95 of more than so many times the p50 is bad."""
_INFRASTRUCTURE: Final = sorted(cause for cause, rule in CAUSE_RULES.items() if rule.budget is Budget.INFRASTRUCTURE)

_CLASS: Final = "CASE WHEN j.job_class = ANY(:classes) THEN j.job_class ELSE :default_class END AS job_class"
_LAST_CAUSE: Final = """
    LEFT JOIN LATERAL (
        SELECT a.cause FROM attempts AS a WHERE a.job_id = j.id AND a.ended_at <= {until}
        ORDER BY a.number DESC LIMIT 1
    ) AS last ON true
"""
_EVENTS: Final[Mapping[Indicator, str]] = {
    "success": """
        SELECT {of_class}, j.finished_at AS at, j.state = 'SUCCEEDED' AS is_good, NULL::float AS within_s
        FROM jobs AS j {last_cause_of_job}
        WHERE j.finished_at >= :since AND j.finished_at < :until
            AND (j.state = 'SUCCEEDED' OR (j.state = 'FAILED' AND last.cause = ANY(:infrastructure)))
        UNION ALL
        SELECT {of_class}, e.at, false, NULL
        FROM events AS e JOIN jobs AS j ON j.id = e.subject_id {last_cause_then}
        WHERE e.kind = 'job.held' AND e.position IS NOT NULL AND e.at >= :since AND e.at < :until
            AND e.payload->>'from' <> 'QUEUED' AND last.cause = ANY(:infrastructure)
    """,
    "start_latency": """
        SELECT {of_class}, CASE WHEN first.at <= due.at THEN first.at ELSE due.at END AS at,
            COALESCE(first.at <= due.at, false) AS is_good, due.within_s
        FROM jobs AS j
        CROSS JOIN LATERAL (
            SELECT DISTINCT w.within_s, j.created_at + make_interval(secs => w.within_s) AS at FROM wanted AS w
        ) AS due
        LEFT JOIN LATERAL (SELECT min(a.running_at) AS at FROM attempts AS a WHERE a.job_id = j.id) AS first ON true
        WHERE j.created_at >= CAST(:since AS timestamptz) - make_interval(secs => :longest_s)
            AND j.created_at < :until
            AND (first.at <= due.at OR (due.at < :until AND (j.finished_at IS NULL OR j.finished_at >= due.at)))
    """,
    "step_latency": """
        SELECT {of_class}, s.at, s.p95 <= :slow_factor * s.p50 AS is_good, NULL::float AS within_s
        FROM (
            SELECT a.job_id, n.at, percentile_cont(0.5) WITHIN GROUP (ORDER BY n.step_s) AS p50,
                percentile_cont(0.95) WITHIN GROUP (ORDER BY n.step_s) AS p95
            FROM attempts AS a CROSS JOIN LATERAL (
                SELECT t.step_s, date_bin(:bucket, t.at, 'epoch') AS at FROM training_steps AS t
                WHERE t.attempt_id = a.id AND t.step_s IS NOT NULL AND t.at < :until
                ORDER BY t.step DESC LIMIT :newest_steps
            ) AS n
            WHERE (a.state <> 'ENDED' OR a.ended_at >= :since) AND a.training_began_at < :until AND n.at >= :since
            GROUP BY a.id, a.job_id, n.at HAVING count(*) >= :least_steps
        ) AS s JOIN jobs AS j ON j.id = s.job_id
    """,
    "checkpoint_success": """
        SELECT {of_class}, e.at, e.kind = 'checkpoint.verified' AS is_good, NULL::float AS within_s
        FROM events AS e JOIN jobs AS j ON j.id = e.payload->>'job_id'
        WHERE e.kind IN ('checkpoint.verified', 'checkpoint.failed', 'checkpoint.rejected')
            AND e.position IS NOT NULL AND e.at >= :since AND e.at < :until
            AND e.payload->>'reason' IS DISTINCT FROM :stale
    """,
    "resume_success": """
        SELECT {of_class}, COALESCE(a.training_began_at, a.ended_at) AS at,
            COALESCE(a.resumed_from IS NOT NULL AND a.training_began_at IS NOT NULL, false) AS is_good,
            NULL::float AS within_s
        FROM attempts AS a JOIN jobs AS j ON j.id = a.job_id
        WHERE a.number > 1 AND (a.state <> 'ENDED' OR a.ended_at >= :since)
            AND COALESCE(a.training_began_at, a.ended_at) >= :since
            AND COALESCE(a.training_began_at, a.ended_at) < :until
            AND (a.training_began_at IS NOT NULL OR a.cause = 'checkpoint_corrupt')
            AND EXISTS (
                SELECT FROM checkpoints AS c WHERE c.job_id = a.job_id AND c.fence < a.fence
                    AND c.status IN ('VERIFIED', 'GOOD') AND c.verified_at <= a.placed_at
            )
    """,
}
_COUNT: Final = """
    WITH wanted AS (
        SELECT * FROM unnest(CAST(:objectives AS text[]), CAST(:of_classes AS text[]), CAST(:within AS float[]),
            CAST(:froms AS timestamptz[])) AS w(objective, job_class, within_s, counted_from)
    ), found AS ({events}
    ), counted AS (
        SELECT w.objective, date_bin(:bucket, f.at, 'epoch') + CAST(:bucket AS interval) AS ends_at,
            count(*) FILTER (WHERE f.is_good) AS num_good, count(*) FILTER (WHERE NOT f.is_good) AS num_bad
        FROM wanted AS w JOIN found AS f
            ON f.job_class = w.job_class AND f.within_s IS NOT DISTINCT FROM w.within_s AND f.at >= w.counted_from
                AND f.at < :until
        GROUP BY 1, 2
    ), gone AS (
        DELETE FROM objective_counts AS o USING wanted AS w
        WHERE o.objective = w.objective AND o.ends_at > w.counted_from AND o.ends_at <= :until
            AND NOT EXISTS (SELECT FROM counted AS c WHERE c.objective = o.objective AND c.ends_at = o.ends_at)
    )
    INSERT INTO objective_counts AS o (objective, ends_at, num_good, num_bad) SELECT * FROM counted
    ON CONFLICT (objective, ends_at) DO UPDATE SET num_good = excluded.num_good, num_bad = excluded.num_bad
    WHERE (o.num_good, o.num_bad) <> (excluded.num_good, excluded.num_bad)
"""


@dataclass(frozen=True, slots=True)
class Counted:
    """An objective whose events are counted from a time on."""

    objective: str
    job_class: str
    indicator: Indicator
    within_s: float | None
    since: datetime


def count(session: Session, wanted: Sequence[Counted], until: datetime, policy: ObjectivePolicy) -> None:
    """Count the events of each objective from its ``since`` up to ``until``; both are ends of five minutes."""
    for indicator, events in _EVENTS.items():
        own = [each for each in wanted if each.indicator == indicator]
        if own:
            parameters = _parameters(indicator, own, until, policy)
            found = events.format(
                of_class=_CLASS,
                last_cause_of_job=_LAST_CAUSE.format(until="j.finished_at"),
                last_cause_then=_LAST_CAUSE.format(until="e.at"),
            )
            session.execute(text(_COUNT.format(events=found)), parameters)


def _parameters(
    indicator: Indicator, own: Sequence[Counted], until: datetime, policy: ObjectivePolicy
) -> dict[str, Any]:
    more: dict[Indicator, dict[str, Any]] = {
        "success": {"infrastructure": _INFRASTRUCTURE},
        "start_latency": {"longest_s": max(each.within_s or 0.0 for each in own)},
        "step_latency": {"newest_steps": NEWEST_STEPS, "least_steps": LEAST_STEPS, "slow_factor": SLOW_FACTOR},
        "checkpoint_success": {"stale": STALE},
    }
    return {
        "objectives": [each.objective for each in own],
        "of_classes": [each.job_class for each in own],
        "within": [each.within_s for each in own],
        "froms": [each.since for each in own],
        "since": min(each.since for each in own),
        "until": until,
        "bucket": BUCKET,
        "classes": list(policy.classes),
        "default_class": policy.default_class,
        **more.get(indicator, {}),
    }
