"""Rollback of all ranks in place: the state of a checkpoint from before a fault is restored, and training continues.

The program is not started again. Its loop gets the number of the restored step from ``run.steps`` and trains on, so all
that decides a step must come from the run: the step's number, ``sample_indices``, and the objects given to ``start``.
An iterator of a DataLoader in the middle of its data cannot be set back, unless it reads a stream of ``run.samples``;
nor can a batch of a stream that the program holds ahead. A run with one ends instead, and its next attempt continues
from the newest checkpoint.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.keys import MissingKeyError
from muster.train.data.streams import Draws
from muster.train.parallel.shards import CoverageError
from muster.train.report.wire import MOST_NAMED
from muster.train.runtime.divergence import DivergedError
from muster.train.runtime.exit_codes import EXIT_CORRUPTION, EXIT_DIVERGED
from muster.train.values.compute_check import report_of
from muster.train.values.on_fault import SKIP, STOP
from muster.train.values.replica_check import ReplicaError

if TYPE_CHECKING:
    from muster.train.checkpoint.checkpoints import Checkpoints
    from muster.train.checkpoint.state import Trained
    from muster.train.data.cursors import Cursors, Place
    from muster.train.parallel.ranks import Agreement
    from muster.train.report.wire import Channel
    from muster.train.reruns.rerun import Rerun
    from muster.train.runtime.saves import Saves
    from muster.train.values.on_fault import ValueFaultRule
    from muster.train.values.value_watch import ValueWatch

Fault = DivergedError | ReplicaError
_STEPS_KEPT = 512
_LONGEST_WORDS = 200


class Recovery:
    """Rollbacks of one rank, which all ranks make together.

    ``why_not``: why the last fault was not rolled back, as the end of a sentence; empty if no rollback was tried.
    """

    def __init__(
        self,
        rule: ValueFaultRule,
        ranks: Agreement,
        channel: Channel,
        trained: Trained,
        samples: Cursors,
        values: ValueWatch,
        rerun: Rerun,
    ) -> None:
        self.why_not = ""
        self._rerun = rerun
        self._rule = rule
        self._ranks = ranks
        self._channel = channel
        self._trained = trained
        self._samples = samples
        self._values = values
        self._places: deque[tuple[int, Place]] = deque(maxlen=_STEPS_KEPT)
        self._num_done = 0
        self._is_half_done = False

    def note_step(self, step: int) -> None:
        """Record the position of the samples before the step that follows ``step``, for a rule that skips."""
        if self._rule.action == SKIP:
            self._places.append((step, self._samples.place()))

    def first_of(self, step: int, fault: Fault, saves: Saves | None) -> Fault:
        """Return the fault, or the earlier one that the save in progress has met, and report it.

        Raises StaleFenceError: a newer attempt has begun.
        """
        self.why_not = ""
        try:
            if saves is not None:
                saves.settle(step)
        except DivergedError as earlier:  # of this state or of one before, which was not committed
            fault = earlier
        except CoverageError as refused:  # it is of the same state, and ranks that differ show so there too
            if self._ranks.rank == 0:
                sys.stderr.write(f"muster.train: {refused}\n")
        self._report(fault)
        return fault

    def _report(self, fault: Fault) -> None:
        """Report a fault, before the reaction to it."""
        if self._ranks.rank != 0:
            return
        if isinstance(fault, ReplicaError):
            self._channel.send("replica_fault", **report_of(fault.fault), reason=str(fault))
        else:
            ranks = fault.ranks[:MOST_NAMED]
            self._channel.send("value_fault", step=fault.step, ranks=ranks, reason=str(fault))

    def roll_back(self, step: int, fault: Fault, checkpoints: Checkpoints | None, saves: Saves | None) -> int | None:
        """Restore a state from before the fault, on all ranks. Return its step; None if it cannot be.

        Raises StaleFenceError: a newer attempt has begun.
        """
        self._rerun.meet_again(step, fault)
        if self._rule.action == STOP and not isinstance(fault, ReplicaError):
            return None
        refusal = self._refusal()
        if refusal or checkpoints is None or saves is None:
            return self._refused(refusal)
        first_bad = self._values.first_bad_step(fault)
        is_replicas = isinstance(fault, ReplicaError)
        suspect = self._rerun.suspect(step, first_bad, fault)
        try:
            about = checkpoints.roll_back(
                self._trained, before=first_bad, number=1 if is_replicas else self._rule.generations
            )
        except (CoverageError, MissingKeyError, OSError) as trouble:
            self._is_half_done |= isinstance(trouble, CoverageError)  # it may have restored the model alone
            return self._refused(f"no checkpoint could be restored: {trouble}")
        if about is None:
            return self._refused(f"there is no checkpoint of a step before {first_bad}")
        self._num_done += 1
        skipped = self._faulty_samples(first_bad, fault) if self._rule.action == SKIP and not is_replicas else None
        for parameter in self._trained.model.parameters():
            parameter.grad = None
        self._samples.roll_back(about.position, about.streams)
        if skipped is not None:
            self._samples.skip(*skipped)
            checkpoints.keep_skipped(self._samples.skipped)
        self._places.clear()
        saves.rolled_back(about.step)
        self._rerun.rolled_back(about.step, suspect if skipped is None else None)
        self._report_done(step, Generation(about.step, about.fence), fault, skipped)
        try:
            self._values.rolled_back(about.step, fault)
        except ReplicaError as again:
            self._is_half_done = True
            return self._refused(f"the restored state is no better: {again}")
        return about.step

    def continues(self, fault: Fault) -> bool:
        """Return whether training continues without a rollback: only buffers differ, and a program may change one on
        one rank alone. They are left out of later checks.
        """
        if not isinstance(fault, ReplicaError) or not fault.fault.is_of_buffers or self._is_half_done:
            return False
        if self._ranks.rank == 0:
            left_out = "the training continues, and what differs is not compared any more: it may be each rank's own"
            sys.stderr.write(f"muster.train: {fault}{self.why_not}; {left_out}\n")
        return True

    def _refused(self, why: str) -> int | None:
        """Note why a fault is not rolled back. Return no step."""
        self.why_not = f"; not rolled back: {why or 'the run saves no checkpoints'}"
        return None

    def _refusal(self) -> str:
        """Return why a fault is not rolled back, the same on all ranks; empty if it is."""
        if self._num_done >= self._rule.budget:
            return f"{self._rule.budget} rollbacks of this attempt are spent"
        has_loader, has_batch = self._ranks.max([_has_live_loader(), self._samples.is_ahead])
        if has_loader:
            return "an iterator of a DataLoader is in the middle of its data, and cannot be set back in place"
        if has_batch:
            return "the program holds a batch that it drew before its first step, and it cannot be set back in place"
        return "its steps were run again and gave the same fault" if self._rerun.is_repeated else ""

    def code_of(self, fault: Fault) -> int:
        """Return the exit code of a run that ends by a fault: another GPU decides about one that repeats itself.

        Without another GPU a new attempt would meet it again, unless most copies name a rank whose host it can leave.
        """
        if self._rerun.is_repeated and not self._rerun.is_decided:
            has_place_to_leave = isinstance(fault, ReplicaError) and bool(fault.fault.ranks)
            return EXIT_CORRUPTION if self._rerun.is_offered or has_place_to_leave else EXIT_DIVERGED
        return EXIT_CORRUPTION if isinstance(fault, ReplicaError) else EXIT_DIVERGED

    def end_step(self, step: int, loss: float | None) -> None:
        """Record a step's loss, with which a re-run of the step is compared."""
        self._rerun.end_step(step, loss)

    def settle_rerun(self, step: int) -> None:
        """Compare at the last step of a re-run. Raises ReplicaError if the copies differ again."""
        if self._rerun.is_due(step):
            self._values.before_save(step)
            self._rerun.end_without(step)

    def _faulty_samples(self, first_bad: int, fault: Fault) -> tuple[Place, Place] | None:
        """Return the places before and after the faulty steps; None if the run did not choose their samples."""
        places = dict(self._places)
        last = fault.step if isinstance(fault, DivergedError) else first_bad
        first, end = places.get(first_bad - 1), places.get(last, self._samples.place())
        return None if first is None or end == first else (first, end)

    def _report_done(self, step: int, to: Generation, fault: Fault, skipped: tuple[Place, Place] | None) -> None:
        if self._ranks.rank != 0:
            return
        first, end = (each.position for each in skipped) if skipped else (0, 0)
        words = skipped[0].until(skipped[1]) if skipped else ""
        self._channel.send(
            "rolled_back",
            from_step=step,
            step=to.step,
            generation=to.name,
            cause="replica_fault" if isinstance(fault, ReplicaError) else "value_fault",
            number=self._num_done,
            budget=self._rule.budget,
            skipped_from=first,
            skipped_to=end,
            skipped=words[:_LONGEST_WORDS],
        )
        skipped_words = f"; {words} are skipped" if words else ""
        number = f"rollback {self._num_done} of {self._rule.budget}"
        sys.stderr.write(f"muster.train: {fault}; {number}: from step {step} to {to.name}{skipped_words}\n")


def _has_live_loader() -> bool:
    """Return whether any iterator of a DataLoader has given a part of its data. One over a stream can be set back."""
    loader: Any = sys.modules.get("torch.utils.data.dataloader")
    if loader is None:
        return False
    gc.collect()
    return any(
        0 < getattr(each, "_num_yielded", 0) < _length_of(each)  # one whose constructor has failed has no such field
        for each in gc.get_objects()
        if issubclass(type(each), loader._BaseDataLoaderIter)  # noqa: SLF001  # ``isinstance`` runs code of objects
        and not isinstance(getattr(each, "_sampler_iter", None), Draws)
    )


def _length_of(iterator: Any) -> float:
    """Return how many batches an iterator gives; infinity if its sampler states no length.

    A sampler's length is the program's own method. So no fault of it counts: it may be on one rank, and others wait.
    """
    try:
        return len(iterator._index_sampler)  # noqa: SLF001  # there is no public place for it
    except Exception:  # noqa: BLE001  # of any kind, see above
        return float("inf")
