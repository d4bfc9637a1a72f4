"""One training run: where it begins, when it saves, and the step at which all ranks stop together."""

from __future__ import annotations

import atexit
import math
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

import torch

from muster.train.checkpoint.cadence import Cadence
from muster.train.checkpoint.checkpoints import Checkpoints
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.data.dataset_paths import dataset_path
from muster.train.data.samples import Samples
from muster.train.parallel.meshes import clip_grad_norm, place_in
from muster.train.parallel.shards import is_sharded
from muster.train.parallel.sizes import Sizes
from muster.train.report.advice import Adviser
from muster.train.report.growth import MemoryGrowth
from muster.train.report.load import Load
from muster.train.runtime import rng as chance
from muster.train.runtime.determinism import average_in_rank_order
from muster.train.runtime.divergence import DivergedError, Divergence
from muster.train.runtime.exit_codes import (
    EXIT_DIVERGED,
    EXIT_NEVER_RESTART,
    EXIT_SAVE_FAILED,
    EXIT_STOPPED_WITH_CHECKPOINT,
    EXIT_STOPPED_WITHOUT,
    leave_at_once,
    patience_s,
)
from muster.train.runtime.faults import Faults
from muster.train.runtime.last_save import LastSave
from muster.train.runtime.program_exit import ProgramExit
from muster.train.runtime.saves import Saves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from torch.distributed.device_mesh import DeviceMesh

    from muster.train.checkpoint.background_save import Saving
    from muster.train.checkpoint.lineage import Lineage
    from muster.train.checkpoint.state import Trained
    from muster.train.parallel.ranks import Ranks
    from muster.train.report.learning_rates import TunedFor
    from muster.train.report.pace import StepTiming
    from muster.train.report.wire import Channel
    from muster.train.runtime.environment import Environment
    from muster.train.runtime.orders import Orders

_CRASH_PATIENCE_S = 10.0
T = TypeVar("T")


@dataclass(frozen=True)
class Joined:
    """A rank among the others: its environment, the other ranks, and the channel to the supervisor with its orders."""

    around: Environment
    ranks: Ranks
    channel: Channel
    orders: Orders


@dataclass(frozen=True)
class CheckpointPlan:
    """How a run plan. ``every``: as ``checkpoint_every`` of ``start``; ``lineage``: stored with each checkpoint."""

    every: int | str
    is_asynchronous: bool
    keep: int
    lineage: Lineage


@dataclass(frozen=True)
class DataSharing:
    """How ranks share the data. ``is_parallel``, ``mesh``: ``data_parallel`` and ``data_mesh`` of ``start``.

    ``is_steady``: gradients are averaged in the order of the ranks.
    """

    seed: int
    is_parallel: bool
    mesh: DeviceMesh | None
    is_steady: bool


class Run:
    """One training run, made by ``start``. ``model`` is the module to call; ``step`` counts the steps that are done.

    ``accumulation``: the factor by which to cut each batch into more pieces than usual; 1 until GPU memory was short.
    """

    def __init__(
        self,
        joined: Joined,
        trained: Trained,
        plan: CheckpointPlan,
        sharing: DataSharing,
        *,
        pace: Callable[..., StepTiming],
        tuned: TunedFor | None,
    ) -> None:
        around, self._ranks, self._channel, self._orders = joined.around, joined.ranks, joined.channel, joined.orders
        self.step = 0
        self.accumulation = around.accumulation
        self.rank = self._ranks.rank
        self.world_size = self._ranks.world_size
        place = (self.rank, self.world_size) if sharing.mesh is None else place_in(sharing.mesh)
        self._samples = Samples(sharing.seed, *place, is_shared=place[1] < self.world_size)
        self._sizes = Sizes(around.nodes_range, self._channel, self.rank)
        self._pace = pace(ranks_per_replica=max(self.world_size // place[1], 1))
        self.model = inner = trained.model
        if isinstance(inner, torch.nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif sharing.is_parallel and self.world_size > 1 and not any(map(is_sharded, inner.parameters())):
            self.model = torch.nn.parallel.DistributedDataParallel(inner)
            if sharing.is_steady:
                average_in_rank_order(self.model, self._pace)
        self._trained = replace(trained, model=inner)
        self._cadence = Cadence(plan.every, around.interval, self._channel, rank=self.rank, num_ranks=self.world_size)
        self._pace.watch(self.model, trained.optimizer)
        self._last_save_retry_s = around.last_save_retry_s
        self._load = Load()
        self._growth = MemoryGrowth(self._channel, self.rank, self._pace.used_bytes)
        self._adviser = Adviser(self._ranks, self._channel, place, tuned=tuned)
        self._divergence = Divergence(trained.optimizer)
        self._loss: float | None = None
        self._has_ended = False
        self._faults = Faults(around, inner)
        self._next_hook, sys.excepthook = sys.excepthook, self._note_crash
        self._program_exit = ProgramExit()
        self._program_exit.watch()
        atexit.register(self._wait_for_save)
        self._checkpoints: Checkpoints | None = None
        self._saves: Saves | None = None
        self._open_checkpoints(around, plan)
        ranks_before = self._resume()
        batch_before = self._samples.position / self.step if self.step else 0.0
        self._adviser.begin(
            self._trained.model, trained.optimizer, ranks_before=ranks_before, batch_before=batch_before
        )

    def _open_checkpoints(self, around: Environment, plan: CheckpointPlan) -> None:
        """Open the job's checkpoints, if it saves any. Ends the process if a newer attempt has begun."""
        if around.checkpoint_place is None:
            return
        try:
            opened = Checkpoints(around, self._ranks, self._channel, keep=plan.keep, made_of=plan.lineage)
        except StaleFenceError as fault:
            self._end("failed", EXIT_NEVER_RESTART, str(fault))
        self._checkpoints = opened
        self._saves = Saves(opened, self._trained, is_asynchronous=plan.is_asynchronous)

    @property
    def stop_requested(self) -> bool:
        """True if this rank was asked to stop; all ranks agree on the step at the end of this one."""
        self._orders.listen()
        return self._orders.stop_reason is not None

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps that are still to do, from 0. Ends the process on all ranks after one step if the job has to
        stop.
        """
        self._cadence.begin()
        if self.step < total:
            self._agree(total)
        while self.step < total:
            started = time.monotonic()
            self._pace.begin()
            self._loss = None
            self._divergence.begin()
            self._faults.meet(self.step)
            self._samples.begin()
            yield self.step
            self.step += 1
            self._load.note(samples=self._samples.advance())
            self._load.end()
            step_s = round(time.monotonic() - started, 6)
            self._pace.end()
            self._cadence.note_step(step_s)
            self._channel.send("step", step=self.step, loss=self._loss, step_s=step_s, samples=self._samples.position)
            self._report_pace()
            if self._checkpoints is not None:
                self._checkpoints.continuity.note_loss(self._loss)
            self._adviser.after_first_step(self._load.num_samples)
            self._agree(total)

    def report(
        self,
        *,
        loss: float | torch.Tensor,
        tokens: int | None = None,
        padded: int | None = None,
        samples: int | None = None,
        grad_norm: float | torch.Tensor | None = None,
    ) -> None:
        """Report this step's loss. One that is not finite ends the run on all ranks after this step, as ``diverged``.

        ``tokens``: tokens that this rank trained on in this step; ``padded``: tokens that filled sequences up to equal
        lengths. ``samples``: needed if ``sample_indices`` did not choose them. ``grad_norm``: needed if
        ``clip_grad_norm`` did not compute it.
        """
        value = float(loss.item() if isinstance(loss, torch.Tensor) else loss)
        self._loss = value if math.isfinite(value) else None
        self._divergence.note_loss(value)
        self._pace.note(tokens=tokens, grad_norm=grad_norm)
        if grad_norm is not None:
            self._divergence.note_grad_norm(grad_norm)
        self._load.note(samples=samples, tokens=tokens, padded=padded)

    def request_resize(self, num_nodes: int) -> None:
        """Request that the job continues with ``num_nodes`` hosts, as ``muster job resize`` does. Only rank 0's request
        counts.

        The call returns at once and guarantees nothing. To change its size the job is asked to stop like any other,
        saves and starts again. If the job does not accept the number, its log and events state so, and training
        continues.
        """
        self._sizes.ask(num_nodes)

    def dataset(self, name: str) -> Path:
        """Return the folder of a dataset that the job names on this host; its files were checked before the start.

        Raises:
            ValueError: the job names no such dataset.
        """
        return dataset_path(name)

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale the gradients to a norm over all ranks of at most ``max_norm``, in any layout. Returns the old norm."""
        norm = clip_grad_norm(self.model.parameters(), max_norm, norm_type)
        self._pace.note(grad_norm=norm)
        self._divergence.note_grad_norm(norm)
        return norm

    def share_of(self, global_batch: int) -> int:
        """Return this rank's number of samples of a batch that all ranks take together: the same training on any number
        of hosts.

        Raises:
            ValueError: the ranks that read data do not divide the batch; it names the nearest batches that they divide.
        """
        return self._samples.share_of(global_batch)

    def sample_indices(self, num_samples: int, batch_size: int) -> list[int]:
        """Return this rank's ``batch_size`` samples of this step: a pure function of seed, position and number of
        ranks.

        Raises:
            ValueError: it was called in this step before. All ranks that call it have to give one ``batch_size``;
                otherwise the step ends with a ValueError on every rank.
        """
        return self._samples.indices(num_samples, batch_size)

    def finish(self) -> None:
        """Save a last checkpoint if this step has none, and report the outcome: all steps are done.

        A save that fails is tried again for ``MUSTER_LAST_SAVE_RETRY_S``. If none succeeds, the process ends with
        ``EXIT_SAVE_FAILED`` on all ranks, and the job continues from an older checkpoint.
        """
        if self._saves is not None and not (last := self._last_save(self._saves)).is_saved:
            if last.is_stopping:
                self._end("stopped_without", EXIT_STOPPED_WITHOUT, f"{self._why_stop()}; {self._not_saved(last)}")
            self._end("failed", EXIT_SAVE_FAILED, self._not_saved(last))
        self._outcome("done", "")
        self._leave()

    def _last_save(self, saves: Saves) -> LastSave:
        """Save this step as the program's last, with as many tries as time allows."""
        last = LastSave(saves, self._ranks, self._orders, self._last_save_retry_s)
        last.save(partial(self._save, is_last=True), self.step)
        return last

    def _not_saved(self, last: LastSave) -> str:
        tries = f"{last.num_tries} {'try' if last.num_tries == 1 else 'tries'} in {last.spent_s:.0f} s"
        why = "" if self._checkpoints is None else self._checkpoints.why_failed
        return f"the last checkpoint, of step {self.step}, could not be saved ({tries}): {why}; {self._newest()}"

    def _report_pace(self, *, is_last: bool = False) -> None:
        if said := self._pace.word(is_last=is_last):
            self._channel.send("pace", step=self.step, **said, **self._load.word())
            self._growth.take_reading(self.step)

    def _leave(self) -> None:
        self._pace.leave()
        self._adviser.leave()
        self.model = self._trained.model  # the wrapper around it refers to the process group
        self._ranks.leave()

    def _resume(self) -> int:
        """Restore the newest checkpoint and return how many ranks saved it; 0 if there is none."""
        about = None if self._checkpoints is None else self._checkpoints.load(self._trained)
        read_bytes = 0 if self._checkpoints is None else self._checkpoints.read_bytes
        rng = chance.policy(0 if about is None else about.world_size, self.world_size)
        if about is None:
            self._channel.send("resumed", step=0, generation="", read_bytes=read_bytes, rng=rng)
            return 0
        self.step = about.step
        if self._saves is not None:
            self._saves.saved_step = about.step
        self._samples.position = about.position
        name = Generation(about.step, about.fence).name
        self._channel.send("resumed", step=self.step, generation=name, read_bytes=read_bytes, rng=rng)
        return about.world_size

    def _agree(self, total: int) -> None:
        """Agree with all ranks between steps: save if it is due or any rank was asked to, stop if any rank must."""
        orders = self._orders
        orders.listen()
        is_saving = self._saves is not None and self._saves.is_busy
        told = [orders.stop_reason is not None, orders.wants_checkpoint, -orders.deadline_ms, is_saving]
        save_s = 0.0 if self._checkpoints is None else self._checkpoints.save_s
        of_run, of_samples, of_values, of_cadence = self._ranks.max_of(
            [*told, self._cadence.is_near(self.step, total)],
            self._samples.figures(),
            self._divergence.figures(),
            self._cadence.figures(self.step, save_s),
        )
        must_stop, wants_checkpoint, minus_deadline, is_busy_anywhere, is_near = of_run
        self._samples.agree(of_samples, self._ranks)
        self._require_convergence(of_values)
        is_due = self._cadence.agree(self.step, of_cadence, is_busy=bool(is_busy_anywhere))
        if not is_busy_anywhere:
            self._settle_save()
        if self._checkpoints is not None and orders.pins is not None:
            self._checkpoints.pin(orders.pins)
            orders.pins = None
        if must_stop and self.step < total:
            self._stop(-minus_deadline)
        if self._saves is None:
            return
        if is_due or wants_checkpoint or self._saves.is_retry_due(self.step):
            orders.wants_checkpoint = False
            if self._saves.saved_step != self.step:
                with self._cadence.stalling():
                    self._save()
        elif is_near:
            self._saves.make_room()

    def _require_convergence(self, highest: Sequence[int]) -> None:
        """End the run on all ranks if any rank has a value that is not finite. The save in progress is of before."""
        try:
            self._divergence.require_none(self.step, highest, self._ranks)
        except DivergedError as fault:
            self._settle_save()
            self._end_diverged(fault)

    def _stop(self, deadline_ms: int) -> None:
        """Save if the time left is enough for one, by the slowest rank's clock and experience, and leave."""
        why = self._why_stop()
        saving = None if self._saves is None else self._saves.saving
        is_stuck = saving is not None and not saving.wait(patience_s(deadline_ms))
        needed_s = 0.0 if self._saves is None else self._saves.needed_s
        left_s = deadline_ms / 1000 - time.time()
        is_stuck_anywhere, is_late = self._ranks.max([is_stuck, needed_s > left_s])
        if is_stuck_anywhere:
            self._outcome("stopped_without", f"{why}; a save is still in progress", within_s=0.0)
            leave_at_once(EXIT_STOPPED_WITHOUT)  # its thread uses the ranks' group, on one of them at least
        self._settle_save()
        is_saved = self._saves is not None and self._saves.saved_step == self.step
        if self._saves is not None and not is_saved and self.step > 0 and not is_late:
            last = self._last_save(self._saves)
            is_saved, why = last.is_saved, why if last.is_saved else f"{why}; {self._not_saved(last)}"
        if is_saved:
            self._end("stopped_with_checkpoint", EXIT_STOPPED_WITH_CHECKPOINT, why, within_s=patience_s(deadline_ms))
        self._end("stopped_without", EXIT_STOPPED_WITHOUT, why, within_s=patience_s(deadline_ms))

    def _why_stop(self) -> str:
        return self._orders.stop_reason or "another rank was asked to stop"

    def _save(self, *, is_last: bool = False) -> bool:
        """Save this step and return whether it is saved or is being saved."""
        saves = self._saves
        if saves is None:
            return False
        return self._saved(partial(saves.save, self.step, self._samples.position, self._loss, is_last=is_last))

    def _settle_save(self) -> None:
        """Wait for the save in progress and act on its result; on all ranks after one step."""
        if self._saves is not None:
            self._saved(partial(self._saves.settle, self.step))

    def _saved(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``. A newer attempt, and a state that has diverged, end the process."""
        try:
            return work()
        except StaleFenceError as fault:
            self._end("failed", EXIT_NEVER_RESTART, str(fault))
        except DivergedError as fault:
            self._end_diverged(fault)

    def _end_diverged(self, fault: DivergedError) -> NoReturn:
        self._end("failed", EXIT_DIVERGED, f"{fault}; {self._newest()}")

    def _newest(self) -> str:
        saved_step = -1 if self._saves is None else self._saves.saved_step
        return f"the newest checkpoint is of step {saved_step}" if saved_step > 0 else "there is no checkpoint"

    def _wait_for_save(self) -> None:
        """Wait for the save in progress if a program ends without ``finish``, unless other ranks have ended too.

        If it or the newest save before it failed, the process ends with ``EXIT_SAVE_FAILED``: no later save makes up
        for it. A code other than 0 that the program chose remains.
        """
        if self._checkpoints is None or self._saves is None or self._has_ended:
            return
        saving = self._checkpoints.saving
        is_saved = not self._saves.has_newest_failed if saving is None else _succeeds(saving)
        self._checkpoints.settle()
        self._checkpoints.close()
        if not is_saved and not self._program_exit.has_failed:
            leave_at_once(EXIT_SAVE_FAILED)

    def _outcome(self, exit_word: str, message: str, *, within_s: float | None = None) -> None:
        self._has_ended = True
        if self._checkpoints is not None:
            self._checkpoints.settle(within_s)
            self._checkpoints.close()
        self._report_pace(is_last=True)
        dropped_lines = self._channel.dropped_lines
        self._channel.send("outcome", exit=exit_word, step=self.step, message=message, dropped_lines=dropped_lines)
        self._channel.close()

    def _end(self, exit_word: str, code: int, message: str, *, within_s: float | None = None) -> NoReturn:
        self._outcome(exit_word, message, within_s=within_s)
        self._leave()
        if exit_word == "failed":
            sys.stderr.write(f"muster.train: {message}\n")
        sys.exit(code)

    def _note_crash(self, kind: type[BaseException], fault: BaseException, traceback: TracebackType | None) -> None:
        """Report that the program raises, before the process ends."""
        if not self._has_ended:
            if self._saves is not None and self._saves.saving is not None:
                self._saves.saving.wait(_CRASH_PATIENCE_S)
            self._has_ended = True
            self._channel.send("outcome", exit="failed", step=self.step, message=f"{kind.__name__}: {fault}")
            self._channel.close()
        self._next_hook(kind, fault, traceback)
        if self._saves is not None and self._saves.is_busy:  # the interpreter may not end under a thread that writes
            leave_at_once(130 if issubclass(kind, KeyboardInterrupt) else 1)


def _succeeds(saving: Saving) -> bool:
    """Wait for a save in progress and return whether it was committed."""
    try:
        return saving.result()
    except Exception as fault:  # noqa: BLE001  # whatever it is, nothing was committed
        sys.stderr.write(f"muster.train: step {saving.step} was not saved: {fault}\n")
        return False
