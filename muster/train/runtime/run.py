"""One training run: where it begins, when it saves, and the step at which all ranks stop together."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint.cadence import Cadence
from muster.train.checkpoint.checkpoints import Checkpoints
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.data.cursors import Cursors
from muster.train.data.dataset_paths import dataset_path
from muster.train.parallel.meshes import clip_grad_norm, place_in, ranks_in, work_place
from muster.train.parallel.shards import is_sharded
from muster.train.parallel.sizes import Sizes
from muster.train.report.advice import Adviser
from muster.train.report.growth import MemoryGrowth
from muster.train.report.load import Load
from muster.train.reruns.rerun import Rerun
from muster.train.runtime import rng as chance
from muster.train.runtime.determinism import average_in_rank_order
from muster.train.runtime.divergence import DivergedError
from muster.train.runtime.ending import Ending
from muster.train.runtime.exit_codes import (
    EXIT_NEVER_RESTART,
    EXIT_SAVE_FAILED,
    EXIT_STOPPED_WITH_CHECKPOINT,
    EXIT_STOPPED_WITHOUT,
    leave_at_once,
    patience_s,
)
from muster.train.runtime.faults import Faults
from muster.train.runtime.last_save import LastSave
from muster.train.runtime.recorder import CheckOrder, Recorder, frame_of_loop
from muster.train.runtime.saves import Saves
from muster.train.values.compute_check import ComputePlan
from muster.train.values.recovery import Fault, Recovery
from muster.train.values.replica_check import ReplicaError
from muster.train.values.value_watch import ValueWatch
from muster.train.watch.activity import ACTIVITY, END, EVALUATION, RESTORE, SAVE, declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from muster.train.checkpoint.state import Trained
    from muster.train.data.streams import SampleStream
    from muster.train.report.learning_rates import TunedFor
    from muster.train.report.pace import StepTiming
    from muster.train.runtime.environment import Environment
    from muster.train.runtime.plans import CheckpointPlan, DataSharing, Joined, ValuePlan


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
        values: ValuePlan,
        pace: Callable[..., StepTiming],
        tuned: TunedFor | None,
    ) -> None:
        around, self._ranks, self._channel, self._orders = joined.around, joined.ranks, joined.channel, joined.orders
        self.step = 0
        self.accumulation = around.accumulation
        self.rank = self._ranks.rank
        self.world_size = self._ranks.world_size
        place = (self.rank, self.world_size) if sharing.mesh is None else place_in(sharing.mesh)
        self._samples = Cursors(sharing.seed, *place, is_shared=place[1] < self.world_size)
        self._sizes = Sizes(around.nodes_range, self._channel, self.rank)
        of_work = work_place(sharing.mesh, None if trained.own is None else trained.own.place, trained.model)
        self._pace = pace(ranks_per_replica=max(self.world_size // place[1], 1), place=of_work)
        self.model, inner = _wrapped(trained.model, sharing, self.world_size, self._pace)
        self._trained = replace(trained, model=inner)
        self._cadence = Cadence(plan.every, around.interval, self._channel, rank=self.rank, num_ranks=self.world_size)
        self._pace.watch(self.model, trained.optimizer)
        self._last_save_retry_s = around.last_save_retry_s
        self._load = Load()
        self._growth = MemoryGrowth(self._channel, self.rank, self._pace.used_bytes)
        self._adviser = Adviser(self._ranks, self._channel, place, tuned=tuned)
        self._values = ValueWatch(
            self._trained,
            self.model,
            self._ranks,
            self._channel,
            every=values.check_every,
            ends_persistent=values.rule.rolls_back,
            compute=self._compute_plan(values, sharing, around),
        )
        self._rerun = Rerun(
            self._trained, self._ranks, self._channel, around.rerun, checked=self._values.compute.digest_at
        )
        self._recovery = Recovery(
            values.rule, self._ranks, self._channel, self._trained, self._samples, self._values, self._rerun
        )
        self._is_leaving = False
        self._loss: float | None = None
        self._faults = Faults(around, inner)
        self._ending = Ending(
            self._channel,
            takes_outcome=around.takes_outcome,
            step=lambda: self.step,
            report_last=partial(self._report_pace, is_last=True),
            leave=self._leave,
        )
        self._checkpoints: Checkpoints | None = None
        self._saves: Saves | None = None
        self._open_checkpoints(around, plan)
        order = CheckOrder.of(around.check)
        self._recorder = Recorder(order, self._trained, rank=self.rank, world_size=self.world_size)
        self._begin()

    def _compute_plan(self, values: ValuePlan, sharing: DataSharing, around: Environment) -> ComputePlan:
        circle = range(self.world_size) if sharing.mesh is None else ranks_in(sharing.mesh)
        is_expected = around.rerun is not None and around.rerun.step is not None
        return ComputePlan(values.compute_every, circle, is_expected=is_expected)

    def _begin(self) -> None:
        """Restore the newest checkpoint, and note for checks and advice where training begins."""
        ACTIVITY.move_to(RESTORE)
        ranks_before = self._resume()
        self._recorder.start(self.step, self.model)
        batch_before = self._samples.num_seen / self.step if self.step else 0.0
        self._adviser.begin(
            self._trained.model, self._trained.optimizer, ranks_before=ranks_before, batch_before=batch_before
        )

    def _open_checkpoints(self, around: Environment, plan: CheckpointPlan) -> None:
        """Open the job's checkpoints, if it saves any. Ends the process if a newer attempt has begun."""
        if around.checkpoint_place is None:
            return
        try:
            opened = Checkpoints(around, self._ranks, self._channel, keep=plan.keep, made_of=plan.lineage)
        except StaleFenceError as fault:
            self._ending.end("failed", EXIT_NEVER_RESTART, str(fault))
        opened.stream_states = self._samples.stream_states
        self._checkpoints = self._ending.checkpoints = opened
        self._saves = self._ending.saves = Saves(opened, self._trained, is_asynchronous=plan.is_asynchronous)

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
        self._rerun.start(self.step)
        ACTIVITY.begin_steps(self.step)
        if self.step < total:
            self._saved(self._start_values)
            self._agree(total)
        while self.step < total:
            if self._recorder.is_over(self.step):
                self._ending.end("done", 0, "")
            frame = frame_of_loop()
            ACTIVITY.loop = None if frame is None else frame.f_code
            self._recorder.begin(self.step, frame)
            del frame  # it would keep the program's variables alive
            started = time.monotonic()
            self._pace.begin()
            self._loss = None
            self._values.begin(self.step + 1)
            with self._pace.aside():
                self._faults.meet(self.step)
            self._samples.begin()
            self._recovery.note_step(self.step)
            yield self.step
            self.step += 1
            ACTIVITY.end_step(self.step)
            self._recorder.end(self.step, self._loss, self._samples.step_samples)
            self._load.note(samples=self._samples.advance())
            self._load.end()
            step_s = round(time.monotonic() - started, 6)
            self._pace.end()
            self._values.end(step_s)
            self._recovery.end_step(self.step, self._values.loss)
            self._cadence.note_step(step_s)
            self._channel.send("step", step=self.step, loss=self._loss, step_s=step_s, samples=self._samples.num_seen)
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
        """Report this step's loss. ``on_value_fault`` of ``start`` says what follows one that is not finite.

        ``tokens``: tokens that this rank trained on in this step; ``padded``: tokens that filled sequences up to equal
        lengths. ``samples``: needed if neither ``sample_indices`` nor a stream of ``samples`` chose them.
        ``grad_norm``: needed if ``clip_grad_norm`` did not compute it.
        """
        value = float(loss.item() if isinstance(loss, torch.Tensor) else loss)
        self._loss = value if math.isfinite(value) else None
        self._values.note_loss(value)
        self._pace.note(tokens=tokens, grad_norm=grad_norm)
        if grad_norm is not None:
            self._values.note_grad_norm(grad_norm)
        self._load.note(samples=samples, tokens=tokens, padded=padded)

    def check_compute(self, loss_of: Callable[[torch.nn.Module, Any], torch.Tensor], batch: object) -> None:
        """Compute a micro-batch on two ranks and compare loss and gradients, in each ``check_compute_every``-th step.

        Call it on every rank in each step, before the first backward pass. In other steps it does nothing.
        ``loss_of(model, batch)`` returns the loss, and changes no state but random numbers and the model's buffers. Its
        result must not depend on the rank. ``batch``: what ``torch.save`` writes; it is left as it is.

        Raises:
            ValueError: ``loss_of`` returns no loss, or gradients are being accumulated.
        """
        if self._values.compute.is_due(self.step + 1):
            with self._pace.apart(), ACTIVITY.within(EVALUATION):
                self._values.compute.check(self.step + 1, loss_of, batch)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Declare what the program does within a ``with`` block: ``with run.phase("eval"):``.

        Names: ``eval``, ``data``, ``save``, ``restore``, ``compile``, ``step``. The watch over hangs infers most of
        them. A declared one may take long, hours for an evaluation, without a call of the model.

        Raises:
            ValueError: for another name.
        """
        return declared(name)

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
        self._values.note_grad_norm(norm)
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

    def samples(
        self,
        name: str,
        num_samples: int,
        batch_size: int | Sequence[int],
        *,
        shuffle: bool = True,
        endless: bool = True,
        drop_last: bool = False,
    ) -> SampleStream:
        """Return a stream of samples, for ``DataLoader(data, batch_sampler=stream)`` or ``stream.draw()``.

        It is saved with each checkpoint, and continues with the next sample that no rank has trained on, on any number
        of ranks. Call it on every rank, with the same arguments. ``batch_size``: of each rank; or a list with one
        number for each rank that reads different samples. ``endless``: batches reach over the ends of epochs. If false,
        an iterator ends with its epoch, and ``drop_last`` leaves its last partial batch out.

        Raises:
            ValueError: an argument that cannot be used, or a checkpoint's stream whose samples had another order. If
                the ranks have different streams, the step ends with a ValueError on every rank.
        """
        return self._samples.stream(
            name, num_samples, batch_size, shuffle=shuffle, endless=endless, drop_last=drop_last
        )

    def finish(self) -> None:
        """Save a last checkpoint if this step has none, and report the outcome: all steps are done.

        A save that fails is tried again for ``MUSTER_LAST_SAVE_RETRY_S``. If none succeeds, the process ends with
        ``EXIT_SAVE_FAILED`` on all ranks, and the job continues from an older checkpoint.
        """
        self._is_leaving = True
        if self._saves is not None and not (last := self._last_save(self._saves)).is_saved:
            why = self._ending.not_saved(last)
            if last.is_stopping:
                self._ending.end("stopped_without", EXIT_STOPPED_WITHOUT, f"{self._why_stop()}; {why}")
            self._ending.end("failed", EXIT_SAVE_FAILED, why)
        self._ending.report("done", "")
        self._leave()

    def _last_save(self, saves: Saves) -> LastSave:
        """Save this step as the program's last, with as many tries as time allows."""
        last = LastSave(saves, self._ranks, self._orders, self._last_save_retry_s)
        last.save(partial(self._save, is_last=True), self.step)
        return last

    def _report_pace(self, *, is_last: bool = False) -> None:
        if said := self._pace.word(is_last=is_last):
            of_rank = {**self._load.word(), **self._values.pace_word(), **self._pace.own_word()}
            self._channel.send("pace", step=self.step, **said, **of_rank)
            self._growth.take_reading(self.step)

    def _leave(self) -> None:
        ACTIVITY.move_to(END)
        self._pace.leave()
        self._adviser.leave()
        self.model = self._trained.model  # the wrapper around it refers to the process group
        self._ranks.leave()

    def _resume(self) -> int:
        """Restore the newest checkpoint and return how many ranks saved it; 0 if there is none."""
        about = None if self._checkpoints is None else self._checkpoints.load(self._trained)
        self._samples.take_skipped([] if self._checkpoints is None else self._checkpoints.skipped())
        read_bytes = 0 if self._checkpoints is None else self._checkpoints.read_bytes
        rng = chance.policy(0 if about is None else about.world_size, self.world_size)
        if about is None:
            self._channel.send("resumed", step=0, generation="", read_bytes=read_bytes, rng=rng)
            return 0
        self.step = about.step
        if self._saves is not None:
            self._saves.saved_step = about.step
        self._samples.resume(about.position, about.streams)
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
            self._values.figures(self.step),
            self._cadence.figures(self.step, save_s),
        )
        must_stop, wants_checkpoint, minus_deadline, is_busy_anywhere, is_near = of_run
        self._samples.agree(of_samples, self._ranks)
        is_due = self._cadence.agree(self.step, of_cadence, is_busy=bool(is_busy_anywhere))
        is_due = self._recorder.due(self.step, is_due=is_due)
        if not self._saved(partial(self._require_values, of_values)):
            return
        if not is_busy_anywhere and not self._settle_save():
            return
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

    def _require_values(self, highest: Sequence[int]) -> bool:
        """Require finite values and replicas alike on all ranks. Raises as ``ValueWatch.agree``."""
        try:
            self._values.agree(self.step, highest)
            self._recovery.settle_rerun(self.step)
        finally:
            if self._checkpoints is not None:
                self._checkpoints.bar_good(self._values.unusual_step, trusted_step=self._values.compute.trusted_step)
        return True

    def _start_values(self) -> bool:
        """Compare the replicas as steps begin. Raises ReplicaError."""
        self._values.start(self.step)
        return True

    def _stop(self, deadline_ms: int) -> None:
        """Save if the time left is enough for one, by the slowest rank's clock and experience, and leave."""
        why, self._is_leaving = self._why_stop(), True
        saving = None if self._saves is None else self._saves.saving
        is_stuck = saving is not None and not saving.wait(patience_s(deadline_ms))
        needed_s = 0.0 if self._saves is None else self._saves.needed_s
        left_s = deadline_ms / 1000 - time.time()
        is_stuck_anywhere, is_late = self._ranks.max([is_stuck, needed_s > left_s])
        if is_stuck_anywhere:
            message = f"{why}; a save is still in progress"
            self._ending.report("stopped_without", message, code=EXIT_STOPPED_WITHOUT, within_s=0.0)
            leave_at_once(EXIT_STOPPED_WITHOUT)  # its thread uses the ranks' group, on one of them at least
        self._settle_save()
        is_saved = self._saves is not None and self._saves.saved_step == self.step
        if self._saves is not None and not is_saved and self.step > 0 and not is_late:
            last = self._last_save(self._saves)
            is_saved, why = last.is_saved, why if last.is_saved else f"{why}; {self._ending.not_saved(last)}"
        within_s = patience_s(deadline_ms)
        if is_saved:
            self._ending.end("stopped_with_checkpoint", EXIT_STOPPED_WITH_CHECKPOINT, why, within_s=within_s)
        self._ending.end("stopped_without", EXIT_STOPPED_WITHOUT, why, within_s=within_s)

    def _why_stop(self) -> str:
        return self._orders.stop_reason or "another rank was asked to stop"

    def _save(self, *, is_last: bool = False) -> bool:
        """Save this step and return whether it is saved or is being saved."""
        if self._saves is None:
            return False
        if self._saves.saved_step != self.step and not self._saved(self._compare_replicas):
            return False
        save = partial(self._saves.save, self.step, self._samples.position, self._loss, is_last=is_last)
        return self._saved(save)

    def _compare_replicas(self) -> bool:
        """Compare the replicas before a save. Raises ReplicaError."""
        self._values.before_save(self.step)
        return True

    def _settle_save(self) -> bool:
        """Wait for the save in progress and act on its result; on all ranks after one step. False: the run was rolled
        back.
        """
        if self._saves is None:
            return True
        step = self.step
        self._saved(partial(self._saves.settle, self.step))
        return self.step == step

    def _saved(self, work: Callable[[], bool]) -> bool:
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
            fault = self._recovery.first_of(self.step, fault, self._saves)
            step = None
            if not self._is_leaving:
                with ACTIVITY.within(RESTORE):
                    step = self._recovery.roll_back(self.step, fault, self._checkpoints, self._saves)
        except StaleFenceError as stale:
            self._ending.end("failed", EXIT_NEVER_RESTART, str(stale))
        if step is None and self._recovery.continues(fault):
            return True
        if step is None:
            code = self._recovery.code_of(fault)
            self._ending.end("failed", code, f"{fault}{self._recovery.why_not}; {self._ending.newest}")
        self.step = step
        return False


def _wrapped(
    model: torch.nn.Module, sharing: DataSharing, world_size: int, pace: StepTiming
) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the module to call, and the program's own within it: under DDP where the ranks share the data."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        return model, model.module
    if not sharing.is_parallel or world_size == 1 or any(map(is_sharded, model.parameters())):
        return model, model
    wrapper = torch.nn.parallel.DistributedDataParallel(model)
    if sharing.is_steady:
        average_in_rank_order(wrapper, pace)
    return wrapper, model
