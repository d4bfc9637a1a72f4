"""What ranks report of their training becomes progress, checkpoints and the timeline. Reported, so it judges no GPU.

A host's lines have effect once: their offset moves in the same transaction. A line that fits nothing is counted.
"""

from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import select

from muster.db.models import Attempt, Checkpoint, TrainingHost
from muster.domain.checkpoint_interval import interval_in_words
from muster.domain.errors import NotFoundError, StaleFenceError
from muster.domain.ids import AttemptId, CheckpointId, NodeId
from muster.domain.policy import Policy
from muster.domain.principals import Permission
from muster.domain.states import AttemptState, CheckpointStatus
from muster.domain.strict import require_clean_document
from muster.identity import new_id
from muster.services.attempts import LoadedAttempt, lock_attempt
from muster.services.checkpoints import RESUMABLE, drop_failed, move_checkpoint, pinned_of, tainted_words
from muster.services.elastic import resize_by_program
from muster.services.lives import spec_of, to_time
from muster.services.policies import active_policy
from muster.services.reclaims.settling import hear_late_words
from muster.services.storage_faults import note_failed, note_saved
from muster.services.training_progress import Progress
from muster.services.unit_of_work import UnitOfWork, declare_action
from muster.wire.training import (
    MOST_FAULTS,
    AnyRankMessage,
    CheckpointDone,
    CheckpointExpired,
    CheckpointInterval,
    CheckpointPinned,
    CheckpointRejected,
    CheckpointScrubbed,
    CheckpointUnreadable,
    Hello,
    Lineage,
    Outcome,
    Pace,
    ResizeAsked,
    Resumed,
    StepDone,
    TrainAnswer,
    TrainBatch,
    TrainLine,
    Warned,
)

TAKE: Final = declare_action("training.take")


def take(unit: UnitOfWork, attempt_id: AttemptId, batch: TrainBatch) -> TrainAnswer:
    """Take a host's lines from where the server stands. Begin the unit ``quiet``: steps leave no events.

    Raises:
        StaleFenceError: the fence is not this attempt's, or the host holds no part of it.
    """
    unit.principal.require(Permission.HOST_REPORT)
    node_id = unit.principal.node_id
    loaded = _loaded(unit, attempt_id)
    if node_id is None or loaded is None or loaded.host(node_id) is None or loaded.attempt.fence != batch.fence:
        raise StaleFenceError
    host = unit.session.get(TrainingHost, (attempt_id, node_id)) or TrainingHost(attempt_id=attempt_id, node_id=node_id)
    if batch.offset != host.line_offset or batch.next_offset < batch.offset:
        return TrainAnswer(offset=host.line_offset, pinned=pinned_of(unit.session, loaded.job.id))
    unit.session.add(host)
    taker = _Taker(unit, loaded, node_id, active_policy(unit.session))
    for line in batch.lines:
        host.num_refused += not taker.take(line)
    host.line_offset = batch.next_offset
    taker.store()
    hear_late_words(unit, loaded.attempt)
    pinned = pinned_of(unit.session, loaded.job.id)
    return TrainAnswer(offset=host.line_offset, taken=len(batch.lines), pinned=pinned)


def _loaded(unit: UnitOfWork, attempt_id: AttemptId) -> LoadedAttempt | None:
    try:
        return lock_attempt(unit, attempt_id)
    except NotFoundError:
        return None


def _lineage_of(message: CheckpointDone) -> dict[str, Any] | None:
    """None where none was told, or none that fits."""
    try:
        return msgspec.structs.asdict(msgspec.convert(message.lineage, Lineage))
    except msgspec.ValidationError:
        return None


class _Taker:
    """One batch's lines: progress is gathered and stored once, checkpoints and outcomes as they come."""

    def __init__(self, unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, policy: Policy) -> None:
        self._unit = unit
        self._loaded = loaded
        self._policy = policy
        self._num_ranks = len(loaded.hosts) * spec_of(loaded.job).shape.num_ranks_per_node
        self._progress = Progress(unit.session, loaded.attempt, node_id)
        self._wanted_nodes: int | None = None

    def take(self, line: TrainLine) -> bool:
        """Whether the line fitted anything."""
        try:
            require_clean_document(line.message)
            message: AnyRankMessage = msgspec.convert(line.message, AnyRankMessage)
        except (ValueError, msgspec.ValidationError):
            return False
        at = to_time(line.at_ms)
        if line.rank is None or line.rank >= self._num_ranks:
            return False
        self._note(line.rank, message, at)
        return True

    def _note(self, rank: int, message: AnyRankMessage, at: datetime) -> None:
        match message:
            case Hello():
                self._progress.note_hello(rank, message, at)
            case StepDone():
                self._progress.note_step(rank, message, at)
            case Pace():
                self._progress.note_pace(rank, message, at)
            case Outcome():
                self._note_outcome(rank, message, at)
            case Warned() if self._progress.note_warning(rank, message, at):
                self._tell("attempt.warned", {"rank": rank, "code": message.code, "reason": message.message})
            case Resumed() | ResizeAsked() | CheckpointInterval() if rank == 0:
                self._note_of_first_rank(message)
            case CheckpointDone() | CheckpointRejected() | CheckpointUnreadable() | CheckpointExpired():
                self._note_generation(message, at)
            case CheckpointPinned() | CheckpointScrubbed() if (row := self._row_of(message.generation)) is not None:
                self._note_kept(row, message, at)

    def _note_of_first_rank(self, message: Resumed | ResizeAsked | CheckpointInterval) -> None:
        """What rank 0 says for the whole job."""
        if isinstance(message, Resumed):
            self._tell("attempt.resumed", {"step": message.step, "generation": message.generation})
        elif isinstance(message, ResizeAsked):
            self._wanted_nodes = message.num_nodes
        else:
            self._note_interval(message)

    def _note_generation(
        self, message: CheckpointDone | CheckpointRejected | CheckpointUnreadable | CheckpointExpired, at: datetime
    ) -> None:
        if isinstance(message, CheckpointDone):
            self._note_checkpoint(message, at)
        elif isinstance(message, CheckpointRejected):
            self._reject(message.generation, message.why or "it did not verify")
        elif isinstance(message, CheckpointUnreadable):
            self._tell("checkpoint.unreadable", {"generation": message.generation, "reason": message.why})
        else:
            self._expire(message.generation)

    def _note_kept(self, row: Checkpoint, message: CheckpointPinned | CheckpointScrubbed, at: datetime) -> None:
        if isinstance(message, CheckpointScrubbed):
            row.scrubbed_at = at
        elif message.is_pinned != (row.pin_held_at is not None):
            row.pin_held_at = at if message.is_pinned else None
            kind = "checkpoint.pin_held" if message.is_pinned else "checkpoint.pin_left"
            self._tell(kind, {"generation": row.generation, "step": row.step})

    def _note_interval(self, message: CheckpointInterval) -> None:
        found = msgspec.structs.asdict(message)
        self._loaded.attempt.checkpoint_interval = found
        self._tell("attempt.checkpoint_interval", {**found, "reason": interval_in_words(found)})

    def _note_outcome(self, rank: int, message: Outcome, at: datetime) -> None:
        self._progress.note_outcome(rank, message, at)
        if rank == 0:
            payload = {"exit": message.exit, "step": message.step, "message": message.message}
            self._tell("attempt.training_ended", payload)

    def _note_checkpoint(self, message: CheckpointDone, at: datetime) -> None:
        row = self._row_of(message.generation)
        if message.status == "writing":
            if row is None and self._loaded.attempt.state is not AttemptState.ENDED:
                self._new_row(message)
            return
        if message.status == "failed":
            drop_failed(self._unit.session, self._loaded.attempt, message.generation)
            payload = {"generation": message.generation, "step": message.step, "why": message.why}
            faults = message.faults[:MOST_FAULTS]
            self._tell("checkpoint.failed", {**payload, "faults": list(faults)})
            note_failed(self._unit, self._loaded, faults, at, self._policy.training.storage)
            return
        if row is None or row.status is CheckpointStatus.WRITING:
            row = row or self._new_row(message)
            self._commit(row, message, at)
        if message.status == "verified" and row.status is CheckpointStatus.COMMITTED:
            self._move(row, CheckpointStatus.VERIFIED)
            row.verified_at = at

    def _new_row(self, message: CheckpointDone) -> Checkpoint:
        attempt = self._loaded.attempt
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
        self._tell("checkpoint.writing", {"generation": row.generation, "step": row.step})
        return row

    def _commit(self, row: Checkpoint, message: CheckpointDone, at: datetime) -> None:
        attempt = self._loaded.attempt
        is_stale = self._unit.session.scalar(
            select(Attempt.id).where(Attempt.job_id == attempt.job_id, Attempt.fence > attempt.fence).limit(1)
        )
        row.status = CheckpointStatus.COMMITTED
        row.manifest = {"sha256": message.manifest_sha256, "save_s": message.seconds, "lineage": _lineage_of(message)}
        row.num_bytes = message.bytes
        row.committed_at = committed_at = to_time(message.at_unix_ms) if message.at_unix_ms else at
        self._unit.session.flush()
        self._tell("checkpoint.committed", {"generation": row.generation, "step": row.step, "bytes": row.num_bytes})
        if message.place:
            note_saved(self._unit, self._loaded, message.place, self._policy.training.storage)
        if is_stale is not None:
            row.reason = "it was committed under an older fence"
            self._move(row, CheckpointStatus.REJECTED)
        elif attempt.tainted_since is not None and committed_at >= attempt.tainted_since:
            row.reason = tainted_words(attempt.tainted_since)
            self._move(row, CheckpointStatus.TAINTED)

    def _reject(self, generation: str, why: str) -> None:
        """Also said of one whose commit was never heard of: its host may have died with the word."""
        row = self._row_of(generation)
        if row is None:
            self._tell("checkpoint.rejected", {"generation": generation, "reason": why})
        elif row.status in RESUMABLE:
            row.reason = why
            self._move(row, CheckpointStatus.REJECTED)

    def _expire(self, generation: str) -> None:
        row = self._row_of(generation)
        if row is not None and row.status is not CheckpointStatus.EXPIRED:
            self._move(row, CheckpointStatus.EXPIRED)

    def _row_of(self, generation: str) -> Checkpoint | None:
        query = select(Checkpoint).where(Checkpoint.job_id == self._loaded.job.id, Checkpoint.generation == generation)
        return self._unit.session.scalar(query)

    def _move(self, row: Checkpoint, status: CheckpointStatus) -> None:
        move_checkpoint(self._unit, row, status)

    def _tell(self, kind: str, payload: dict[str, Any]) -> None:
        attempt = self._loaded.attempt
        payload = {"job_id": attempt.job_id, **payload}
        self._unit.emit(kind, "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)

    def store(self) -> None:
        self._progress.store()
        if self._progress.newest_step is not None:
            self._promote(self._progress.newest_step)
        if self._wanted_nodes is not None:  # the newest word of the batch: a program that asks in a loop asks once
            resize_by_program(self._unit, self._loaded, self._wanted_nodes)

    def _promote(self, step: int) -> None:
        """Verified, and enough healthy steps after it: GOOD."""
        reached = step - self._policy.training.good_after_steps
        query = select(Checkpoint).where(
            Checkpoint.attempt_id == self._loaded.attempt.id,
            Checkpoint.status == CheckpointStatus.VERIFIED,
            Checkpoint.step <= reached,
        )
        for row in self._unit.session.scalars(query).all():
            self._move(row, CheckpointStatus.GOOD)
