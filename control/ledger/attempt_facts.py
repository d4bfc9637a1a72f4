"""Facts of the attempts of a window: when each phase began and ended, and what its program and the watch reported.

Steps come as runs of consecutive ones: made by PostgreSQL, since an hour of a large fleet has millions of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from control.ledger.reading import Window, in_ms
from ledger.facts import Attempt, EarlierAttempt, Period, Rollback, Slow, Steps
from muster.domain.states import Cause

EARLIER: Final = 200
"""Earlier attempts of a job that are compared with one: the newest."""
_LONGEST_S: Final = "1e9"
"""Thirty years: a program may report any number, and one that is no bigint would stop the hour of the whole fleet."""


def _seconds(name: str) -> str:
    """Return the SQL expression of a reported length of time: at least 0 s, and 0 s where it is null."""
    return f"least(greatest(coalesce({name}, 0), 0), {_LONGEST_S})"


_ATTEMPTS: Final = f"""
SELECT own.id, own.number, {in_ms("own.placed_at")}, own.job_id, own.tenant_id, placed.tier, {in_ms("own.claimed_at")},
    {in_ms("own.running_at")}, {in_ms("own.stopping_at")}, {in_ms("own.ended_at")}, own.cause,
    EXISTS (SELECT FROM training_steps AS step WHERE step.job_id = own.job_id)
        OR EXISTS (SELECT FROM training_ranks AS rank WHERE rank.attempt_id = own.id),
    (SELECT {in_ms("step.at")} - ({_seconds("step.step_s")} * 1000)::bigint FROM training_steps AS step
        WHERE step.attempt_id = own.id ORDER BY step.step LIMIT 1),
    (SELECT {in_ms("rank.updated_at")} FROM training_ranks AS rank WHERE rank.attempt_id = own.id AND rank.rank = 0),
    (SELECT job.job_class FROM jobs AS job WHERE job.id = own.job_id)
FROM allocations AS placed JOIN attempts AS own ON own.id = placed.attempt_id
WHERE placed.created_at < :until AND (placed.state <> 'RELEASED' OR placed.released_at > :since)
    AND (CAST(:jobs AS text[]) IS NULL OR own.job_id = ANY(:jobs))
"""  # noqa: S608  # words of ours
_SAVES_S: Final = _seconds("(pace ->> 'checkpoint_s')::float8") + " * (pace ->> 'num_steps')::float8"
_STEPS: Final = f"""
WITH own AS (
    SELECT attempt_id, step, {in_ms("at")} AS at_ms, ({_seconds("step_s")} * 1000)::bigint AS took_ms,
        ({_seconds(_SAVES_S)} * 1000)::bigint AS save_ms
    FROM training_steps
    WHERE at > :since AND at < CAST(:until AS timestamptz) + interval '1 hour'
        AND at - {_seconds("step_s")} * interval '1 s' < :until AND attempt_id = ANY(:attempts)
), marked AS (
    SELECT *, CASE WHEN lag(step) OVER by_step = step - 1 AND lag(save_ms) OVER by_step = 0 AND save_ms = 0
            AND at_ms - took_ms - lag(at_ms) OVER by_step BETWEEN -100 AND 1000
            AND at_ms / 900000 = lag(at_ms) OVER by_step / 900000 THEN 0 ELSE 1 END AS begins
    FROM own WINDOW by_step AS (PARTITION BY attempt_id ORDER BY step)
), numbered AS (
    SELECT *, sum(begins) OVER (PARTITION BY attempt_id ORDER BY step) AS run FROM marked
)
SELECT attempt_id, min(step), max(step), max(at_ms), max(at_ms) - min(at_ms - took_ms), sum(save_ms)::bigint
FROM numbered GROUP BY attempt_id, run
"""  # noqa: S608  # words of ours
_SAVES: Final = f"""
SELECT attempt_id, {in_ms("created_at")}, {in_ms("committed_at")} FROM checkpoints
WHERE attempt_id = ANY(:attempts) AND created_at < :until AND committed_at > greatest(created_at, :since)
"""  # noqa: S608  # words of ours
_RESTORES: Final = f"""
SELECT subject_id, restored.end_ms - ({_seconds("(payload ->> 'restore_s')::float8")} * 1000)::bigint, restored.end_ms
FROM events CROSS JOIN LATERAL (
    SELECT {in_ms("CAST(payload ->> 'restored_at' AS timestamptz)")} AS end_ms
) AS restored
WHERE kind = 'attempt.resumed' AND subject_id = ANY(:attempts)
    AND CAST(payload ->> 'restored_at' AS timestamptz) > :since
"""  # noqa: S608  # words of ours
_ROLLBACKS: Final = f"""
SELECT event.subject_id, {in_ms("event.at")}, (event.payload ->> 'from_step')::bigint,
    (event.payload ->> 'step')::bigint, event.payload ->> 'cause',
    (SELECT {in_ms("step.at")} FROM training_steps AS step
        WHERE step.attempt_id = event.subject_id AND step.step <= (event.payload ->> 'step')::bigint
        ORDER BY step.step DESC LIMIT 1),
    event.id
FROM events AS event
WHERE event.kind = 'attempt.rolled_back' AND event.subject_id = ANY(:attempts) AND event.at > :since
"""  # noqa: S608  # words of ours
_HANGS: Final = f"""
SELECT verdict.attempt_id,
    coalesce((SELECT {in_ms("step.at")} FROM training_steps AS step
        WHERE step.attempt_id = verdict.attempt_id AND step.at <= verdict.created_at ORDER BY step.step DESC LIMIT 1),
        {in_ms("own.running_at")}, {in_ms("verdict.created_at")}),
    coalesce((SELECT {in_ms("step.at")} - ({_seconds("step.step_s")} * 1000)::bigint FROM training_steps AS step
        WHERE step.attempt_id = verdict.attempt_id AND step.at > verdict.created_at ORDER BY step.step LIMIT 1),
        {in_ms("own.ended_at")}),
    verdict.cause, verdict.id
FROM verdicts AS verdict JOIN attempts AS own ON own.id = verdict.attempt_id
WHERE verdict.kind = 'hang' AND verdict.state = 'standing' AND verdict.attempt_id = ANY(:attempts)
"""  # noqa: S608  # words of ours
_SLOW: Final = f"""
SELECT verdict.attempt_id, {in_ms("verdict.created_at")}, {in_ms("verdict.ended_at")}, verdict.id, verdict.cause,
    (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY {_seconds("before.step_s")}) * 1000 FROM (
        SELECT step_s FROM training_steps AS step
        WHERE step.attempt_id = verdict.attempt_id AND step.step < verdict.step AND step.step_s IS NOT NULL
        ORDER BY step.step DESC LIMIT 200) AS before)::bigint
FROM verdicts AS verdict
WHERE verdict.kind = 'straggler' AND verdict.state = 'standing' AND verdict.attempt_id = ANY(:attempts)
    AND verdict.created_at < :until AND coalesce(verdict.ended_at, 'infinity') > :since
"""  # noqa: S608  # words of ours
_EARLIER: Final = f"""
SELECT own.id, before.id, before.number, trained.step, before.cause,
    {in_ms("before.ended_at")} - {in_ms("before.placed_at")}
FROM attempts AS own CROSS JOIN LATERAL (
    SELECT * FROM attempts AS one WHERE one.job_id = own.job_id AND one.number < own.number AND one.cause IS NOT NULL
    ORDER BY one.number DESC LIMIT :most
) AS before CROSS JOIN LATERAL (
    SELECT step.step FROM training_steps AS step WHERE step.attempt_id = before.id ORDER BY step.step DESC LIMIT 1
) AS trained
WHERE own.id = ANY(:attempts) AND own.number > 1
"""  # noqa: S608  # words of ours
_EVIDENCE: Final = """
SELECT attempt_id, array_agg(DISTINCT evidence_id ORDER BY evidence_id) FROM (
    SELECT victim_attempt_id AS attempt_id, id AS evidence_id FROM reclaims WHERE victim_attempt_id = ANY(:attempts)
        AND state IN ('RELEASED', 'FORCED')
    UNION ALL
    SELECT attempt_id, id FROM verdicts
    WHERE attempt_id = ANY(:attempts) AND state = 'standing' AND kind <> 'straggler'
    UNION ALL
    SELECT own.id, found.id FROM attempts AS own
    JOIN attempt_hosts AS part ON part.attempt_id = own.id AND (part.is_at_fault OR own.cause = 'evacuated')
    JOIN evidence AS found ON found.node_id = part.node_id AND found.last_seen_at >= own.placed_at
        AND found.onset_at <= own.ended_at + interval '5 minutes' AND found.dismissed_at IS NULL AND found.severity >= 2
    WHERE own.id = ANY(:attempts) AND own.cause IN ('gpu_fault', 'node_lost', 'nccl_timeout', 'corruption', 'evacuated')
) AS cited GROUP BY attempt_id
"""
_Parts = Mapping[str, list[Any]]


def attempts_of(window: Window, job_ids: Sequence[str] | None = None) -> dict[str, Attempt]:
    """Return the attempts that have a GPU in the window, by id. ``job_ids``: None: of all jobs."""
    rows = window.rows(_ATTEMPTS, {"jobs": None if job_ids is None else list(job_ids)})
    given = {"attempts": [row[0] for row in rows]}
    earlier = window.rows(_EARLIER, {**given, "most": EARLIER})
    named = sorted({*given["attempts"], *(row[1] for row in earlier)})
    evidence = {own_id: tuple(ids) for own_id, ids in window.rows(_EVIDENCE, {"attempts": named})}
    parts: dict[str, dict[str, list[Any]]] = {}
    for own_id, name, part in _parts_of(window, given, earlier, evidence):
        parts.setdefault(own_id, {}).setdefault(name, []).append(part)
    return {row[0]: _attempt(row, parts.get(row[0], {}), evidence.get(row[0], ())) for row in rows}


def _parts_of(
    window: Window, given: Mapping[str, Any], earlier: Sequence[Any], evidence: Mapping[str, tuple[str, ...]]
) -> list[tuple[str, str, Any]]:
    """Return attempt, field and value of all that an attempt may have several of."""
    found: list[tuple[str, str, Any]] = []
    found += [(own_id, "steps", Steps(*rest)) for own_id, *rest in window.rows(_STEPS, given)]
    found += [(own_id, "saves", Period(*rest)) for own_id, *rest in window.rows(_SAVES, given)]
    found += [(own_id, "restores", Period(*rest)) for own_id, *rest in window.rows(_RESTORES, given)]
    for own_id, at_ms, from_step, to_step, cause, since_ms, event_id in window.rows(_ROLLBACKS, given):
        rollback = Rollback(at_ms, from_step, to_step, cause, since_ms, (event_id,))
        found.append((own_id, "rollbacks", rollback))
    for own_id, start_ms, end_ms, cause, verdict_id in window.rows(_HANGS, given):
        found.append((own_id, "hangs", Period(start_ms, _not_before(end_ms, start_ms), cause, (verdict_id,))))
    found += [(own_id, "slow", Slow(*rest)) for own_id, *rest in window.rows(_SLOW, given)]
    for own_id, before_id, number, last_step, cause, assigned_ms in earlier:
        before = EarlierAttempt(number, last_step, Cause(cause), evidence.get(before_id, ()), assigned_ms)
        found.append((own_id, "earlier", before))
    return found


def _attempt(row: Any, parts: _Parts, evidence: tuple[str, ...]) -> Attempt:
    own_id, _, placed_ms, job_id, tenant_id, tier, claimed_ms, running_ms, stopping_ms, ended_ms, cause = row[:11]
    has_reports, first_step_ms, known_until_ms, job_class = row[11:]
    several: dict[str, Any] = {name: tuple(values) for name, values in parts.items()}
    return Attempt(
        own_id,
        placed_ms,
        job_id=job_id,
        tenant_id=tenant_id,
        tier=tier,
        job_class=job_class,
        claimed_ms=claimed_ms,
        running_ms=running_ms,
        first_step_ms=first_step_ms,
        stopping_ms=stopping_ms,
        ended_ms=ended_ms,
        known_until_ms=known_until_ms,
        end_cause=None if cause is None else Cause(cause),
        evidence=evidence,
        has_reports=has_reports,
        **several,
    )


def _not_before(end_ms: int | None, start_ms: int) -> int | None:
    return None if end_ms is None else max(end_ms, start_ms)
