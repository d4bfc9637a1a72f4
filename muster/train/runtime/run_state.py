"""The state of a run: restored as it begins, saved, and rolled back after a fault of its values."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from muster.train.checkpoint.checkpoints import Checkpoints
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.runtime import rng as chance
from muster.train.runtime.divergence import DivergedError
from muster.train.runtime.exit_codes import EXIT_NEVER_RESTART
from muster.train.runtime.last_save import LastSave
from muster.train.runtime.saves import Saves
from muster.train.values.replica_check import ReplicaError
from muster.train.watch.activity import ACTIVITY, RESTORE, SAVE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from muster.train.checkpoint.state import Trained
    from muster.train.data.cursors import Cursors
    from muster.train.runtime.ending import Ending
    from muster.train.runtime.plans import CheckpointPlan, Joined
    from muster.train.values.recovery import Fault, Recovery
    from muster.train.values.value_watch import ValueWatch


class RunState:
    """The state of one rank, which all ranks restore, save and roll back together.

    ``step``: the number of steps that are done; ``loss``: of the newest one, None if it is not finite. ``checkpoints``,
    ``saves``: None if the run saves nothing. ``is_leaving``: the run ends, so that nothing is rolled back any more.
    """

    def __init__(
        self,
        joined: Joined,
        trained: Trained,
        samples: Cursors,
        values: ValueWatch,
        recovery: Recovery,
        ending: Ending,
    ) -> None:
        self.step = 0
        self.loss: float | None = None
        self.is_leaving = False
        self.checkpoints: Checkpoints | None = None
        self.saves: Saves | None = None
        self._joined = joined
        self._trained = trained
        self._samples = samples
        self._values = values
        self._recovery = recovery
        self._ending = ending

    def open(self, plan: CheckpointPlan) -> None:
        """Open the job's checkpoints, if it saves any. Ends the process if a newer attempt has begun."""
        around, ranks = self._joined.around, self._joined.ranks
        if around.checkpoint_place is None:
            return
        try:
            opened = Checkpoints(around, ranks, self._joined.channel, keep=plan.keep, made_of=plan.lineage)
        except StaleFenceError as fault:
            self._ending.end("failed", EXIT_NEVER_RESTART, str(fault))
        opened.stream_states = self._samples.stream_states
        self.checkpoints = self._ending.checkpoints = opened
        self.saves = self._ending.saves = Saves(opened, self._trained, is_asynchronous=plan.is_asynchronous)

    def restore(self) -> int:
        """Restore the newest checkpoint and return how many ranks saved it; 0 if there is none."""
        began_s = time.monotonic()
        about = None if self.checkpoints is None else self.checkpoints.load(self._trained)
        self._samples.take_skipped([] if self.checkpoints is None else self.checkpoints.skipped())
        read_bytes = 0 if self.checkpoints is None else self.checkpoints.read_bytes
        rng = chance.policy(0 if about is None else about.world_size, self._joined.ranks.world_size)
        channel = self._joined.channel
        if about is None:
            channel.send("resumed", step=0, generation="", read_bytes=read_bytes, rng=rng)
            return 0
        self.step = about.step
        if self.saves is not None:
            self.saves.saved_step = about.step
        self._samples.resume(about.position, about.streams)
        name = Generation(about.step, about.fence).name
        restore_s = round(time.monotonic() - began_s, 3)
        channel.send("resumed", step=self.step, generation=name, read_bytes=read_bytes, rng=rng, restore_s=restore_s)
        return about.world_size

    def start_values(self) -> None:
        """Compare the replicas as steps begin."""
        self._recovered(self._start_values)

    def require_values(self, highest: Sequence[int]) -> bool:
        """Require finite values and replicas alike on all ranks. ``highest``: the ranks' highest figures of them.

        False: the run was rolled back.
        """
        return self._recovered(partial(self._require_values, highest))

    def save(self, *, is_last: bool = False) -> bool:
        """Save this step and return whether it is saved or is being saved."""
        if self.saves is None:
            return False
        if self.saves.saved_step != self.step and not self._recovered(self._compare_replicas):
            return False
        save = partial(self.saves.save, self.step, self._samples.position, self.loss, is_last=is_last)
        return self._recovered(save)

    def save_last(self, saves: Saves) -> LastSave:
        """Save this step as the program's last, with as many tries as time allows."""
        joined = self._joined
        last = LastSave(saves, joined.ranks, joined.orders, joined.around.last_save_retry_s)
        last.save(partial(self.save, is_last=True), self.step)
        return last

    def settle_save(self) -> bool:
        """Wait for the save in progress and act on its result; on all ranks after one step. False: the run was rolled
        back.
        """
        if self.saves is None:
            return True
        step = self.step
        self._recovered(partial(self.saves.settle, self.step))
        return self.step == step

    def _start_values(self) -> bool:
        """Compare the replicas of the state that was restored. Raises ReplicaError."""
        self._values.start(self.step)
        return True

    def _require_values(self, highest: Sequence[int]) -> bool:
        """Agree about values and replicas with all ranks. Raises as ``ValueWatch.agree``."""
        try:
            self._values.agree(self.step, highest)
            self._recovery.settle_rerun(self.step)
        finally:
            if self.checkpoints is not None:
                self.checkpoints.bar_good(self._values.unusual_step, trusted_step=self._values.compute.trusted_step)
        return True

    def _compare_replicas(self) -> bool:
        """Compare the replicas before a save. Raises ReplicaError."""
        self._values.before_save(self.step)
        return True

    def _recovered(self, work: Callable[[], bool]) -> bool:
        """Return the result of ``work``; False after a rollback; True if training continues with a fault. A newer
        attempt ends the process, and so does another fault of values that is not rolled back.
        """
        try:
            with ACTIVITY.within(SAVE):
                return work()
        except StaleFenceError as fault:
            self._ending.end("failed", EXIT_NEVER_RESTART, str(fault))
        except (DivergedError, ReplicaError) as fault:
            return self._recover(fault)

    def _recover(self, fault: Fault) -> bool:
        """Roll back on all ranks, and return False; or end the run. True: training continues as it is."""
        try:
            fault = self._recovery.first_of(self.step, fault, self.saves)
            step = None
            if not self.is_leaving:
                with ACTIVITY.within(RESTORE):
                    step = self._recovery.roll_back(self.step, fault, self.checkpoints, self.saves)
        except StaleFenceError as stale:
            self._ending.end("failed", EXIT_NEVER_RESTART, str(stale))
        if step is None and self._recovery.continues(fault):
            return True
        if step is None:
            code = self._recovery.code_of(fault)
            self._ending.end("failed", code, f"{fault}{self._recovery.why_not}; {self._ending.newest}")
        self.step = step
        return False
