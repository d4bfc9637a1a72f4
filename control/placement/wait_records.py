"""Wait reasons of a job as stored in its row: the sentence, the binding token, and all tokens with their counts.

A firm start is stored with them, with the GPUs of its place, so that the next cycle keeps it
(``scheduler.holds.firm_starts``).

Tokens are stored as ``db.stored_values`` says.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Job
from muster.db.pipeline.packed_arrays import within
from muster.db.stored_values import member_of, stored_value
from muster.domain.ids import GpuUuid, JobId
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.states import JobState
from muster.domain.times import to_time
from scheduler.model import FirmStart, Postponed, Reason, Turn, Waiting

WITHOUT_PREFLIGHT: Final[Mapping[JobState, WaitReason]] = {
    JobState.HELD: WaitReason.RELEASE_NEEDED,
    JobState.RECOVERING: WaitReason.RECOVERING,
}
"""Wait reasons of states that keep a job from the scheduler."""


_NOTE: Final = text(
    """
    WITH changed AS (
        SELECT jobs.id, told.why, told.kept,
            jobs.wait_verdict -> 'binding' IS DISTINCT FROM told.kept -> 'binding' AS has_other_binding,
            jobs.wait_verdict IS NULL OR jobs.wait_verdict -> 'binding' <> told.kept -> 'binding'
            OR jsonb_path_query_array(jobs.wait_verdict, '$.reasons[*][0]')
                <> jsonb_path_query_array(told.kept, '$.reasons[*][0]') AS is_another
        FROM unnest(
            CAST(:job_ids AS text[]), CAST(:whys AS text[]), CAST(:kept AS jsonb[]), CAST(:only_first AS boolean[])
        ) AS told (job_id, why, kept, is_only_first)
        JOIN jobs ON jobs.id = told.job_id
        WHERE jobs.state = 'QUEUED' AND NOT (told.is_only_first AND jobs.wait_verdict IS NOT NULL)
            AND (jobs.state_reason IS DISTINCT FROM told.why OR jobs.wait_verdict IS DISTINCT FROM told.kept)
        ORDER BY jobs.id
        FOR NO KEY UPDATE OF jobs
    ), noted AS (
        UPDATE jobs
        SET state_reason = changed.why, wait_verdict = changed.kept,
            updated_at = CASE WHEN is_another THEN :now ELSE jobs.updated_at END,
            version = jobs.version + CAST(is_another AS int)
        FROM changed WHERE jobs.id = changed.id
        RETURNING 1
    ), dated AS (
        INSERT INTO job_wait_changes (job_id, at, binding)
        SELECT id, :now, kept ->> 'binding' FROM changed WHERE has_other_binding
    )
    SELECT count(*) FROM noted
    """
)


def note_waiting(unit: UnitOfWork, waiting: Sequence[Waiting]) -> int:
    """Store why each job waits, where that has changed. Return how many changed.

    One statement does it for all: with 10,000 pending jobs, every start or end changes the counts of each. A job gets a
    new version where other reasons keep it waiting, and none where only the counts of the same reasons change. Else a
    busy fleet would refuse every change of a pending job by the version that its caller has just read. A job that the
    cycle did not examine keeps the reason of the last cycle that did.
    """
    told = {
        "job_ids": [one.job_id for one in waiting],
        "whys": [one.why for one in waiting],
        "kept": [json.dumps(_kept(one)) for one in waiting],
        "only_first": [one.verdict.binding is WaitReason.EXAMINED_LATER for one in waiting],
    }
    return int(unit.session.execute(_NOTE, {**told, "now": unit.now}).scalar_one())


def binding_of(state: JobState, kept: Mapping[str, Any] | None) -> WaitReason | None:
    """Return the binding reason; None: the job does not wait, or the scheduler has not tried it yet."""
    if state in WITHOUT_PREFLIGHT:
        return WaitReason.BUNDLE_NEEDED if _awaits_bundle(state, kept) else WITHOUT_PREFLIGHT[state]
    return member_of(WaitReason, kept["binding"]) if kept is not None and state is JobState.QUEUED else None


def reasons_of(state: JobState, kept: Mapping[str, Any] | None) -> tuple[Reason, ...]:
    if state in WITHOUT_PREFLIGHT:
        return (Reason(binding_of(state, kept) or WITHOUT_PREFLIGHT[state]),)
    return tuple(_reasons(kept)) if kept is not None and state is JobState.QUEUED else ()


def _awaits_bundle(state: JobState, kept: Mapping[str, Any] | None) -> bool:
    """Return whether a job is HELD until its bundle is whole again (``attempts.mapping.show_bundle_awaited``)."""
    return state is JobState.HELD and kept is not None and kept["binding"] == WaitReason.BUNDLE_NEEDED


def firm_start_of(kept: Mapping[str, Any] | None) -> FirmStart | None:
    """Return the firm start of a QUEUED job, by the newest cycle."""
    told = None if kept is None else kept.get("firm_start")
    if told is None:
        return None
    return FirmStart(told["latest_ms"], tuple(map(GpuUuid, told["gpus"])), told["is_guaranteed"])


def postponed_of(kept: Mapping[str, Any] | None) -> Postponed | None:
    """Return the last firm start of a QUEUED job that was postponed."""
    told = None if kept is None else kept.get("postponed")
    return None if told is None else Postponed(told["latest_ms"], told["why"])


def firm_start_at(state: JobState, kept: Mapping[str, Any] | None) -> datetime | None:
    """Return by when the job starts; None if its start is not firm."""
    firm_start = firm_start_of(kept) if state is JobState.QUEUED else None
    return None if firm_start is None else to_time(firm_start.latest_ms)


def turns(session: Session, job_ids: Sequence[JobId]) -> dict[JobId, Turn]:
    """Return each job's turn in the newest cycle. A job that the cycle did not try has none."""
    turn = Job.wait_verdict["turn"].as_integer()
    query = select(Job.id, turn).where(within(Job.id, job_ids), Job.state == JobState.QUEUED, turn.is_not(None))
    return {job_id: Turn(number) for job_id, number in session.execute(query)}


def _reasons(kept: Mapping[str, Any]) -> Iterator[Reason]:
    for token, num_gpus, num_hosts in kept["reasons"]:
        yield Reason(member_of(WaitReason, token), num_gpus, num_hosts)


def _kept(waiting: Waiting) -> dict[str, Any]:
    """Return the stored form. A verdict without counts has its token alone. The turn is for queues shown in order."""
    verdict = waiting.verdict
    told = verdict.reasons or (Reason(verdict.binding),)
    reasons = [[stored_value(reason.token), reason.num_gpus, reason.num_hosts] for reason in told]
    kept: dict[str, Any] = {
        "binding": stored_value(verdict.binding),
        "reasons": reasons,
        "turn": waiting.turn.value,
    }
    if waiting.firm_start is not None:
        kept["firm_start"] = asdict(waiting.firm_start)
    if waiting.postponed is not None:
        kept["postponed"] = asdict(waiting.postponed)
    return kept
