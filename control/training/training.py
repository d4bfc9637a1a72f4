"""Training reports of ranks: they become progress, checkpoints and the timeline. Reported, so they judge no GPU.

A host's lines have effect once: their offset moves in the same transaction. A line that fits nothing is counted.
"""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.attempts.allowance import Allowance, is_over
from control.attempts.attempts import LoadedAttempt
from control.attempts.learnt import note_learnt
from control.attempts.own_parts import own_part
from control.attempts.ranks import num_ranks, ranks_of
from control.attempts.reclaim_outcomes import accept_late_report
from control.checkpoints.checkpoints import pinned_of
from control.core.late_reports import note_late
from control.core.unit_of_work import UnitOfWork, declare_action
from control.placement.resizing import resize_by_program
from control.policy.policies import active_policy
from control.training.checkpoint_reports import CheckpointReports
from control.training.training_progress import Progress
from control.training.value_reports import event_of, note_unusual
from control.watch.reruns import note_replica_fault, note_rerun
from control.watch.stall_reports import note_moving, note_stalled
from control.watch.straggler_readings import HostGpus
from muster.db.models import AttemptHost, TrainingHost, TrainingStep
from muster.domain.ids import AttemptId
from muster.domain.job.checkpoint_interval import interval_in_words
from muster.domain.policy.document import Policy
from muster.domain.principals import Permission
from muster.domain.states import AttemptState
from muster.domain.strict import require_clean_document
from muster.domain.times import to_time
from muster.wire.training import (
    AnyCheckpointMessage,
    AnyRankMessage,
    AnyValueMessage,
    CheckpointDone,
    CheckpointInterval,
    Hello,
    Learnt,
    Outcome,
    Pace,
    ReplicaFault,
    Rerun,
    ResizeRequested,
    Resumed,
    RolledBack,
    Spiked,
    Stalled,
    StepDone,
    TrainAnswer,
    TrainBatch,
    TrainLine,
    ValueFault,
    Warned,
)

RECORD: Final = declare_action("training.record")
_MOST_FAULTS: Final = 32
"""Reports of faults and re-runs that one batch stores: each asks for verdicts under the lock of the job."""
_TRAINS: Final = (StepDone, CheckpointDone)
"""Reports of rank 0 by which a program that does not report where it continues from has chosen it."""


def take(unit: UnitOfWork, attempt_id: AttemptId, batch: TrainBatch) -> TrainAnswer:
    """Take a host's lines from where the server stands. Begin the unit ``quiet``: steps leave no events.

    Raises:
        UpgradeRequiredError: another protocol.
        StaleFenceError: the fence is not this attempt's, or the host holds no part of it.
    """
    unit.principal.require(Permission.HOST_REPORT)
    loaded, part = own_part(unit, attempt_id, batch.fence, batch.protocol)
    policy = active_policy(unit.session)
    if is_over(loaded.attempt.ended_at, unit.now, policy.limits.attempt):  # skipped, so that no host repeats it
        return TrainAnswer(offset=batch.next_offset, pinned=pinned_of(unit.session, loaded.job.id))
    node_id = part.node_id
    host = unit.session.get(TrainingHost, (attempt_id, node_id)) or TrainingHost(attempt_id=attempt_id, node_id=node_id)
    if batch.offset != host.line_offset or batch.next_offset < batch.offset:
        return TrainAnswer(offset=host.line_offset, pinned=pinned_of(unit.session, loaded.job.id))
    unit.session.add(host)
    taker = _Taker(unit, loaded, part, host, policy)
    for line in batch.lines:
        host.num_refused += not taker.take(line)
    host.num_refused += batch.num_skipped
    host.line_offset = batch.next_offset
    taker.store()
    if batch.lines:
        times_ms = [line.at_ms for line in batch.lines]
        note_late(unit, to_time(min(times_ms)), to_time(max(times_ms)))
    accept_late_report(unit, loaded.attempt)
    pinned = pinned_of(unit.session, loaded.job.id)
    return TrainAnswer(offset=host.line_offset, taken=len(batch.lines), pinned=pinned)


class _Taker:
    """One batch's lines: progress is gathered and stored once, checkpoints and outcomes as they come."""

    def __init__(
        self, unit: UnitOfWork, loaded: LoadedAttempt, part: AttemptHost, host: TrainingHost, policy: Policy
    ) -> None:
        self._unit = unit
        self._loaded = loaded
        self._part = part
        self._host = host
        self._policy = policy
        self._allowance = Allowance(unit, loaded.attempt, policy.limits.attempt)
        self._num_ranks = num_ranks(loaded)
        own_ranks = ranks_of(loaded, part)
        stragglers = policy.watch.stragglers
        is_judged = stragglers.is_on and loaded.attempt.state is not AttemptState.ENDED
        window_s = stragglers.window_s if is_judged else None
        gpus = HostGpus(unit, loaded, part)
        self._progress = Progress(
            unit.session, loaded.attempt, host.node_id, window_s=window_s, own_ranks=own_ranks, gpus=gpus
        )
        self._checkpoints = CheckpointReports(unit, loaded, policy, self._allowance)
        self._wanted_nodes: int | None = None
        self._num_faults = 0

    def take(self, line: TrainLine) -> bool:
        """Process a line. Return whether it fitted anything."""
        try:
            require_clean_document(line.message)
            message: AnyRankMessage = msgspec.convert(line.message, AnyRankMessage)
        except (ValueError, msgspec.ValidationError):
            return False
        at = to_time(line.at_ms)
        if isinstance(message, Stalled):
            return self._note_stalled(line, message)
        if isinstance(message, Learnt):  # as above: a program cannot state it
            return line.rank is None and note_learnt(self._host, message.durations)
        if line.rank is None or line.rank >= self._num_ranks:
            return False
        if line.rank == 0 and isinstance(message, _TRAINS):
            self._checkpoints.note_begun(at)
        if isinstance(message, AnyCheckpointMessage):
            self._checkpoints.note(message, at)
        else:
            self._note(line.rank, message, at)
        return True

    def _note_stalled(self, line: TrainLine, message: Stalled) -> bool:
        """Store a report of the host itself. A line with a rank is the program's, which cannot report for its host."""
        if line.rank is not None:
            return False
        if message.is_over:
            return note_moving(self._unit, self._loaded, self._part)
        return message.report is not None and note_stalled(self._unit, self._loaded, self._part, message.report)

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
                self._report("attempt.warned", {"rank": rank, "code": message.code, "reason": message.message})
            case Spiked() | ValueFault() | ReplicaFault() | RolledBack() | Rerun() if rank == 0:
                self._note_value(message)
            case Resumed() | ResizeRequested() | CheckpointInterval() if rank == 0:
                self._note_of_first_rank(message, at)

    def _note_value(self, message: AnyValueMessage) -> None:
        note_unusual(self._loaded.attempt, message)
        if isinstance(message, RolledBack):
            note_late(self._unit, self._done_at(message.step))
        if not isinstance(message, Spiked) or message.is_shown:
            self._report(*event_of(message))
        if not isinstance(message, ReplicaFault | Rerun):
            return
        self._num_faults += 1
        if self._num_faults > _MOST_FAULTS:
            return
        if isinstance(message, ReplicaFault):
            note_replica_fault(self._unit, self._loaded, message)
        else:
            note_rerun(self._unit, self._loaded, message, self._policy)

    def _done_at(self, step: int) -> datetime:
        """Return when the attempt had done ``step``: what it did since is lost."""
        attempt = self._loaded.attempt
        is_before = TrainingStep.attempt_id == attempt.id, TrainingStep.step <= step
        query = select(TrainingStep.at).where(*is_before).order_by(TrainingStep.step.desc()).limit(1)
        return self._unit.session.scalar(query) or attempt.placed_at

    def _note_of_first_rank(self, message: Resumed | ResizeRequested | CheckpointInterval, at: datetime) -> None:
        """Store a report that rank 0 makes for the whole job."""
        if isinstance(message, Resumed):
            self._note_resumed(message, at)
        elif isinstance(message, ResizeRequested):
            self._wanted_nodes = message.num_nodes
        else:
            self._note_interval(message)

    def _note_resumed(self, message: Resumed, at: datetime) -> None:
        """Store from where the attempt continues, and when its restore began and ended: in its time."""
        self._checkpoints.note_resumed(message.generation, at)
        payload: dict[str, Any] = {"step": message.step, "generation": message.generation}
        since_placed_s = (at - self._loaded.attempt.placed_at).total_seconds()
        if message.restore_s is not None and since_placed_s > 0:
            restore_s = min(message.restore_s, since_placed_s)
            payload |= {"restore_s": restore_s, "restored_at": at.isoformat()}
            note_late(self._unit, at - timedelta(seconds=restore_s))
        self._report("attempt.resumed", payload)

    def _note_interval(self, message: CheckpointInterval) -> None:
        found = msgspec.structs.asdict(message)
        self._loaded.attempt.checkpoint_interval = found
        self._report("attempt.checkpoint_interval", {**found, "reason": interval_in_words(found)})

    def _note_outcome(self, rank: int, message: Outcome, at: datetime) -> None:
        self._progress.note_outcome(rank, message, at)
        if rank == 0:
            payload = {"exit": message.exit, "step": message.step, "message": message.message}
            self._report("attempt.training_ended", payload)

    def _report(self, kind: str, payload: dict[str, Any]) -> None:
        if not self._allowance.takes_event():
            return
        attempt = self._loaded.attempt
        payload = {"job_id": attempt.job_id, **payload}
        self._unit.emit(kind, "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)

    def store(self) -> None:
        num_new = self._progress.num_steps
        is_within = self._allowance.takes_steps(self._host.num_steps, num_new)
        self._progress.store(self._unit.now, has_steps=is_within)
        self._host.num_steps += num_new if is_within else 0
        if self._progress.newest_step is not None:
            self._checkpoints.promote(self._progress.newest_step)
        if self._wanted_nodes is not None:  # only the newest request of the batch counts: a program may ask in a loop
            resize_by_program(self._unit, self._loaded, self._wanted_nodes)
