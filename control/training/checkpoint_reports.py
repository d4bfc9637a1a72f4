"""Reports of ranks on checkpoints, stored as rows under the fence of the reporting attempt.

The generation from which a job continues is no value of its own: it is the newest usable row
(``checkpoints.resume_of``). Rows change under the lock of the job's row alone, which placement holds as it gives out a
fence; so the check for a newer attempt and the write of an older one's report are one compare-and-set:

    attempt 1   commits step 100 at 10:00, loses contact, commits step 200 at 10:09
    attempt 2   resumes from step 100, trains from 10:05 on
    rows        step 100 stays usable; step 200 is REJECTED: it was committed after attempt 2 had begun
"""

import re
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import select, tuple_

from control.attempts.allowance import Allowance
from control.attempts.attempts import LoadedAttempt
from control.attempts.mapping import job_request
from control.checkpoints.checkpoints import RESUMABLE, STALE, drop_failed, move_checkpoint, tainted_words
from control.checkpoints.taint_lineage import taint_lineage, taint_range
from control.content.uses import environments_of
from control.core.unit_of_work import UnitOfWork
from control.training.storage_faults import note_failed, note_saved
from muster.db.models import Attempt, Checkpoint
from muster.domain.ids import CheckpointId
from muster.domain.job.request import ENVIRONMENT
from muster.domain.job.spec import NodeLossRule
from muster.domain.policy.document import Policy
from muster.domain.states import AttemptState, CheckpointStatus
from muster.domain.times import to_time
from muster.identity import new_id
from muster.wire.training import (
    MOST_FAULTS,
    AnyCheckpointMessage,
    CheckpointDone,
    CheckpointExpired,
    CheckpointFound,
    CheckpointPinned,
    CheckpointRejected,
    CheckpointScrubbed,
    CheckpointUnreadable,
    Lineage,
)

_NAME: Final = re.compile(r"step-[0-9]{1,18}/gen-[0-9]{1,20}")


class CheckpointReports:
    """Checkpoint reports in one batch of one attempt, whose job is locked."""

    def __init__(self, unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy, allowance: Allowance) -> None:
        self._unit = unit
        self._loaded = loaded
        self._policy = policy
        self._allowance = allowance

    def note(self, message: AnyCheckpointMessage, at: datetime) -> None:
        match message:
            case CheckpointDone():
                self._note_done(message, at)
            case CheckpointFound():
                self._note_found(message, at)
            case CheckpointRejected():
                self._reject(message.generation, message.why or "it did not verify")
            case CheckpointUnreadable():
                self._report("checkpoint.unreadable", {"generation": message.generation, "reason": message.why})
            case CheckpointExpired():
                self._expire(message.generation)
            case _:
                self._note_kept(message, at)

    def _note_done(self, message: CheckpointDone, at: datetime) -> None:
        """Store a generation that is being written, is committed, was read back equal, or failed."""
        row, attempt = self._row_of(message.generation), self._loaded.attempt
        if message.status == "writing":
            if row is not None and row.status is CheckpointStatus.EXPIRED and row.attempt_id == attempt.id:
                # A rollback removed it, and its attempt now saves that step again: of the same name, and another one.
                self._unit.session.delete(row)
                self._unit.session.flush()
                row = None
            if row is None and attempt.state is not AttemptState.ENDED:
                self._new_row(attempt, message)
            return
        if message.status == "failed":
            self._note_failed(message, at)
            return
        if row is None or row.status is CheckpointStatus.WRITING:
            row = row or self._new_row(attempt, message)
            if row is None:
                return
            self._commit(row, attempt, message, at, save_s=message.seconds)
            if message.place:
                note_saved(self._unit, self._loaded, message.place, self._policy.training.storage)
        if message.status == "verified":
            self._note_verified(row, at)

    def _note_found(self, message: CheckpointFound, at: datetime) -> None:
        """Store a generation of an earlier attempt, which this one has read whole.

        Its commit may not have been reported: its maker died first. The generation is that attempt's, and a taint of
        that attempt's results includes it.
        """
        maker = self._maker_of(message.generation)
        if maker is None or self._is_overtaken(self._loaded.attempt, at):
            return
        row = self._row_of(message.generation)
        if row is None or row.status is CheckpointStatus.WRITING:
            row = row or self._new_row(maker, message)
            if row is None:
                return
            self._commit(row, maker, message, at, found_by=self._loaded.attempt.id)
        self._note_verified(row, at)

    def note_begun(self, at: datetime) -> None:
        """Store that the attempt trains from now on: what an older one commits later does not count.

        So an attempt on several hosts need not wait for the lease of a lost one, unless the job requires it.
        """
        attempt = self._loaded.attempt
        if attempt.training_began_at is not None:
            return
        attempt.training_began_at = at
        if job_request(self._loaded.job).on_node_loss is None and (attempt.num_nodes or 1) > 1:
            attempt.on_node_loss = NodeLossRule.FENCED

    def note_resumed(self, generation: str, at: datetime) -> None:
        """Store the generation from which the attempt continues.

        A reported later commit of an older attempt, which this one has not seen, does not count either.
        """
        self.note_begun(at)
        self._note_descent(generation)
        own = self._loaded.attempt
        seen = self._row_of(generation)
        later = select(Checkpoint).where(
            Checkpoint.job_id == own.job_id,
            Checkpoint.fence < own.fence,
            Checkpoint.status.in_(RESUMABLE),
            Checkpoint.committed_at >= at,
        )
        if seen is not None:  # by the clocks of two hosts its commit may seem later
            later = later.where(tuple_(Checkpoint.step, Checkpoint.fence) > (seen.step, seen.fence))
        for row in self._unit.session.scalars(later).all():
            row.reason = STALE
            move_checkpoint(self._unit, row, CheckpointStatus.REJECTED)

    def _note_descent(self, generation: str) -> None:
        """Store the generation on whose results the attempt builds.

        They may be in doubt only since its order was given.
        """
        maker = self._maker_of(generation) if _NAME.fullmatch(generation) else None
        if maker is None:
            return
        self._loaded.attempt.resumed_from = generation
        lock = select(Attempt.id).where(Attempt.id == maker.id).with_for_update(key_share=True)
        self._unit.session.execute(lock)  # a taint at this moment waits, and then sees that this attempt resumed
        taint_lineage(self._unit, [maker.job_id])

    def _note_kept(self, message: CheckpointPinned | CheckpointScrubbed, at: datetime) -> None:
        row = self._row_of(message.generation)
        if row is None:
            return
        if isinstance(message, CheckpointScrubbed):
            row.scrubbed_at = at
        elif message.is_pinned != (row.pin_applied_at is not None):
            row.pin_applied_at = at if message.is_pinned else None
            kind = "checkpoint.pin_applied" if message.is_pinned else "checkpoint.pin_left"
            self._report(kind, {"generation": row.generation, "step": row.step})

    def _reject(self, generation: str, why: str) -> None:
        """Reject a generation, also one whose commit was never reported: its host may have died before the report."""
        row = self._row_of(generation)
        if row is None:
            self._report("checkpoint.rejected", {"generation": generation, "reason": why})
        elif row.status in RESUMABLE:
            row.reason = why
            move_checkpoint(self._unit, row, CheckpointStatus.REJECTED)

    def _expire(self, generation: str) -> None:
        row = self._row_of(generation)
        if row is not None and row.status is not CheckpointStatus.EXPIRED:
            move_checkpoint(self._unit, row, CheckpointStatus.EXPIRED)

    def promote(self, step: int) -> None:
        """Promote verified generations with enough healthy steps after them to GOOD.

        The newest step counts only with the one after it: until then a rank may report that its values are faulty.
        """
        reached = step - 1 - self._policy.training.good_after_steps
        unusual = self._loaded.attempt.unusual_step
        if unusual is not None and unusual > reached:
            return
        query = select(Checkpoint).where(
            Checkpoint.attempt_id == self._loaded.attempt.id,
            Checkpoint.status == CheckpointStatus.VERIFIED,
            Checkpoint.step <= reached,
        )
        for row in self._unit.session.scalars(query).all():
            move_checkpoint(self._unit, row, CheckpointStatus.GOOD)

    def _note_failed(self, message: CheckpointDone, at: datetime) -> None:
        had_row = drop_failed(self._unit.session, self._loaded.attempt, message.generation)
        payload = {"generation": message.generation, "step": message.step, "why": message.why}
        faults = message.faults[:MOST_FAULTS]
        self._report("checkpoint.failed", {**payload, "faults": list(faults)}, is_charged=had_row)
        note_failed(self._unit, self._loaded, faults, at, self._policy.training.storage)

    def _note_verified(self, row: Checkpoint, at: datetime) -> None:
        if row.status is CheckpointStatus.COMMITTED:
            move_checkpoint(self._unit, row, CheckpointStatus.VERIFIED)
            row.verified_at = at

    def _new_row(self, attempt: Attempt, message: CheckpointDone | CheckpointFound) -> Checkpoint | None:
        """Return a new row; None where the attempt may have no more. A resume finds that generation in its store."""
        if not self._allowance.takes_checkpoint(attempt):
            return None
        row = Checkpoint(
            id=CheckpointId(new_id("checkpoint")),
            job_id=attempt.job_id,
            attempt_id=attempt.id,
            tenant_id=attempt.tenant_id,
            fence=attempt.fence,
            step=message.step,
            generation=message.generation,
            status=CheckpointStatus.WRITING,
            manifest={},
            created_at=self._unit.now,
        )
        self._unit.session.add(row)
        self._unit.session.flush()
        self._report("checkpoint.writing", {"generation": row.generation, "step": row.step}, is_charged=True)
        return row

    def _commit(
        self, row: Checkpoint, maker: Attempt, message: CheckpointDone | CheckpointFound, at: datetime, **facts: object
    ) -> None:
        """Store a commit. ``maker``: the attempt that wrote it, which is not always the reporting one."""
        row.status = CheckpointStatus.COMMITTED
        row.manifest = {"sha256": message.manifest_sha256, "lineage": self._lineage_of(message), **facts}
        row.num_bytes = message.bytes
        row.committed_at = committed_at = to_time(message.at_unix_ms) if message.at_unix_ms else at
        self._unit.session.flush()
        told = {"generation": row.generation, "step": row.step, "bytes": row.num_bytes}
        is_own = maker.id == self._loaded.attempt.id
        payload = told if is_own else {**told, "made_by": maker.id}
        self._report("checkpoint.committed", payload, is_charged=True)
        if maker.tainted_since is not None and committed_at >= maker.tainted_since:
            row.reason = tainted_words(maker.tainted_since)
            move_checkpoint(self._unit, row, CheckpointStatus.TAINTED)
        elif self._is_overtaken(maker, committed_at):
            row.reason = STALE
            move_checkpoint(self._unit, row, CheckpointStatus.REJECTED)

    def _is_overtaken(self, attempt: Attempt, at: datetime) -> bool:
        """Return whether a newer attempt had begun by then. Commits before that were seen by the newer one.

        The reporting attempt does not count as newer: it has seen the generation, whatever the clocks of their hosts
        show.
        """
        newer = select(Attempt.id).where(
            Attempt.job_id == attempt.job_id,
            Attempt.fence > attempt.fence,
            Attempt.id != self._loaded.attempt.id,
            Attempt.training_began_at <= at,
        )
        return self._unit.session.scalar(newer.limit(1)) is not None

    def _maker_of(self, generation: str) -> Attempt | None:
        """Return the earlier attempt of this job whose fence is in the name."""
        own = self._loaded.attempt
        fence = taint_range(generation)
        if fence >= own.fence:
            return None
        return self._unit.session.scalar(select(Attempt).where(Attempt.job_id == own.job_id, Attempt.fence == fence))

    def _row_of(self, generation: str) -> Checkpoint | None:
        query = select(Checkpoint).where(Checkpoint.job_id == self._loaded.job.id, Checkpoint.generation == generation)
        return self._unit.session.scalar(query)

    def _lineage_of(self, message: CheckpointDone | CheckpointFound) -> dict[str, Any] | None:
        """Return the lineage; None where none was reported, or none that fits, and the job has no bundle.

        Bundle and environments are the job's own, whatever its program reports.
        """
        job = self._loaded.job
        bundle, needed = job_request(job).bundle, job_request(job).capabilities
        environments = environments_of(self._unit.session, job.id) if ENVIRONMENT in needed else ()
        try:
            reported = msgspec.convert(message.lineage, Lineage)
        except msgspec.ValidationError:
            if bundle is None:
                return None
            reported = Lineage()
        return msgspec.structs.asdict(msgspec.structs.replace(reported, bundle=bundle, environments=environments))

    def _report(self, kind: str, payload: dict[str, Any], *, is_charged: bool = False) -> None:
        """Add an event, within the attempt's allowance. ``is_charged``: it was charged when its row was made."""
        if not is_charged and not self._allowance.takes_event():
            return
        attempt = self._loaded.attempt
        payload = {"job_id": attempt.job_id, **payload}
        self._unit.emit(kind, "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)
