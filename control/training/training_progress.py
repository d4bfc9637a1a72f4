"""Progress of a job's ranks, by their own reports: gathered over a batch of lines, and stored once."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from control.training.rank_windows import GpuFigures, folded
from muster.db.models import Attempt, TrainingRank, TrainingStep
from muster.domain.ids import NodeId
from muster.domain.thinned import Point, Thinned
from muster.wire.training import Hello, Outcome, Pace, StepDone, Warned

MOST_WARNINGS: Final = 16


class Progress:
    """Progress of the ranks of one host. Rank 0 reports the job's steps as well.

    ``window_s``: the length of windows of own compute; None: stragglers are not judged. ``own_ranks``: of this host,
    whose windows count: a program may report in the name of any rank. ``gpus``: what was measured of their GPUs.
    """

    def __init__(
        self,
        session: Session,
        attempt: Attempt,
        node_id: NodeId,
        *,
        window_s: float | None,
        own_ranks: range,
        gpus: GpuFigures,
    ) -> None:
        self._session = session
        self._attempt = attempt
        self._node_id = node_id
        self._ranks: dict[int, dict[str, Any]] = {}
        self._steps: dict[int, dict[str, Any]] = {}
        self._paces: dict[int, dict[str, Any]] = {}
        self._warnings: dict[int, dict[str, str]] = {}
        self._reported: dict[int, list[Point]] = {}
        self._window_s = window_s
        self._own_ranks = own_ranks
        self._gpus = gpus
        self._of_windows: dict[int, list[tuple[int, dict[str, Any]]]] = {}

    @property
    def newest_step(self) -> int | None:
        """The newest step that rank 0 reported in this batch."""
        return max(self._steps, default=None)

    @property
    def num_steps(self) -> int:
        """The number of different steps that rank 0 reported in this batch."""
        return len(self._steps)

    def note_hello(self, rank: int, message: Hello, at: datetime) -> None:
        self._note(rank, at, world_size=message.world_size)

    def note_outcome(self, rank: int, message: Outcome, at: datetime) -> None:
        self._note(rank, at, outcome=message.exit)

    def note_step(self, rank: int, message: StepDone, at: datetime) -> None:
        self._note(rank, at, step=message.step, loss=message.loss, step_s=message.step_s)
        self._reported.setdefault(rank, []).append((message.step, message.loss, message.step_s))
        if rank == 0:
            self._steps[message.step] = {"loss": message.loss, "step_s": message.step_s, "at": at}

    def note_pace(self, rank: int, message: Pace, at: datetime) -> None:
        pace = msgspec.structs.asdict(message)
        step = pace.pop("step")
        self._note(rank, at, pace=pace)
        if rank in self._own_ranks:
            self._of_windows.setdefault(rank, []).append((step, pace))
        if rank == 0:
            self._paces[step] = {"pace": pace, "at": at}

    def note_warning(self, rank: int, message: Warned, at: datetime) -> bool:
        """Store a warning. Return whether it is new: each code counts once, and only so many."""
        known = self._warnings.get(rank)
        if known is None:
            stored = self._session.get(TrainingRank, (self._attempt.id, rank))
            known = self._warnings[rank] = dict((stored and stored.warnings) or {})
        if message.code in known or len(known) >= MOST_WARNINGS:
            return False
        known[message.code] = message.message
        self._note(rank, at, warnings=known)
        return True

    def store(self, now: datetime, *, has_steps: bool = True) -> None:
        """Store the batch. ``has_steps``: with a row for each step of rank 0."""
        self._lengthen_histories()
        if self._window_s is not None:
            attempt_id, gpus = self._attempt.id, self._gpus
            windows = folded(self._session, attempt_id, self._of_windows, self._window_s, now, gpus)
            for rank, changed in windows.items():
                self._ranks[rank].update(changed)
        for rank, fields in sorted(self._ranks.items()):
            keys = {"attempt_id": self._attempt.id, "rank": rank}
            row = {**keys, "tenant_id": self._attempt.tenant_id, "node_id": self._node_id, **fields}
            upsert = insert(TrainingRank).values(row)
            self._session.execute(upsert.on_conflict_do_update(index_elements=list(keys), set_=fields))
        if not has_steps:
            return
        if self._steps:
            of_steps = insert(TrainingStep).values(self._rows(self._steps))
            again = {name: of_steps.excluded[name] for name in ("loss", "step_s", "at")}  # after a rollback
            self._session.execute(of_steps.on_conflict_do_update(index_elements=["attempt_id", "step"], set_=again))
        if self._paces:
            of_steps = insert(TrainingStep).values(self._rows(self._paces))
            told = {"pace": of_steps.excluded.pace}
            self._session.execute(of_steps.on_conflict_do_update(index_elements=["attempt_id", "step"], set_=told))

    def _note(self, rank: int, at: datetime, **fields: object) -> None:
        self._ranks.setdefault(rank, {}).update({**fields, "updated_at": at})

    def _rows(self, found: Mapping[int, Mapping[str, Any]]) -> list[dict[str, Any]]:
        attempt = self._attempt
        shared = {"attempt_id": attempt.id, "job_id": attempt.job_id, "tenant_id": attempt.tenant_id}
        return [{**shared, "step": step, **fields} for step, fields in sorted(found.items())]

    def _lengthen_histories(self) -> None:
        """Add points to histories where one is kept: the longer a run, the more seldom, so the row stays small."""
        if not self._reported:
            return
        query = select(TrainingRank.rank, TrainingRank.history)
        query = query.where(TrainingRank.attempt_id == self._attempt.id, TrainingRank.rank.in_(self._reported))
        known = {rank: history_in(stored) for rank, stored in self._session.execute(query)}
        for rank, told in self._reported.items():
            before = known.get(rank, Thinned())
            after = before.with_points(told)
            if after is not before:
                self._ranks[rank]["history"] = {"stride": after.stride, "points": after.points}


def history_in(stored: Mapping[str, Any] | None) -> Thinned:
    """Return the steps that a rank's row keeps."""
    if stored is None:
        return Thinned()
    return Thinned(stored["stride"], tuple((step, loss, step_s) for step, loss, step_s in stored["points"]))
