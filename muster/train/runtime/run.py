"""One training run: what a program calls in its steps."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint.cadence import Cadence
from muster.train.data.cursors import Cursors
from muster.train.data.dataset_paths import dataset_path
from muster.train.parallel.meshes import clip_grad_norm, place_in, work_place
from muster.train.parallel.sizes import Sizes
from muster.train.report.advice import Adviser
from muster.train.report.growth import MemoryGrowth
from muster.train.report.load import Load
from muster.train.reruns.rerun import Rerun
from muster.train.runtime.ending import Ending
from muster.train.runtime.faults import Faults
from muster.train.runtime.recorder import CheckOrder, Recorder, frame_of_loop
from muster.train.runtime.run_state import RunState
from muster.train.runtime.step_agreement import StepAgreement
from muster.train.values.recovery import Recovery
from muster.train.values.value_watch import ValueWatch
from muster.train.watch.activity import ACTIVITY, END, EVALUATION, RESTORE, declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from muster.train.checkpoint.state import Trained
    from muster.train.data.streams import SampleStream
    from muster.train.report.learning_rates import TunedFor
    from muster.train.report.pace import StepTiming
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
        self.accumulation = around.accumulation
        self.rank = self._ranks.rank
        self.world_size = self._ranks.world_size
        place = (self.rank, self.world_size) if sharing.mesh is None else place_in(sharing.mesh)
        self._samples = Cursors(sharing.seed, *place, is_shared=place[1] < self.world_size)
        self._sizes = Sizes(around.nodes_range, self._channel, self.rank)
        of_work = work_place(sharing.mesh, None if trained.own is None else trained.own.place, trained.model)
        self._pace = pace(ranks_per_replica=max(self.world_size // place[1], 1), place=of_work)
        self.model, inner = sharing.wrapped(trained.model, self.world_size, self._pace)
        self._trained = replace(trained, model=inner)
        self._cadence = Cadence(plan.every, around.interval, self._channel, rank=self.rank, num_ranks=self.world_size)
        self._pace.watch(self.model, trained.optimizer)
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
            compute=values.compute_plan(sharing, joined),
        )
        self._rerun = Rerun(
            self._trained, self._ranks, self._channel, around.rerun, checked=self._values.compute.digest_at
        )
        self._recovery = Recovery(
            values.rule, self._ranks, self._channel, self._trained, self._samples, self._values, self._rerun
        )
        self._faults = Faults(around, inner)
        self._ending = Ending(
            self._channel,
            takes_outcome=around.takes_outcome,
            step=lambda: self.step,
            report_last=partial(self._report_pace, is_last=True),
            leave=self._leave,
        )
        watched = self._samples, self._values
        self._state = RunState(joined, self._trained, *watched, self._recovery, self._ending)
        self._state.open(plan)
        order = CheckOrder.of(around.check)
        self._recorder = Recorder(order, self._trained, rank=self.rank, world_size=self.world_size)
        self._agreement = StepAgreement(joined, self._state, *watched, self._cadence, self._recorder, self._ending)
        self._begin()

    def _begin(self) -> None:
        """Restore the newest checkpoint, and note for checks and advice where training begins."""
        ACTIVITY.move_to(RESTORE)
        ranks_before = self._state.restore()
        self._recorder.start(self.step, self.model)
        batch_before = self._samples.num_seen / self.step if self.step else 0.0
        self._adviser.begin(
            self._trained.model, self._trained.optimizer, ranks_before=ranks_before, batch_before=batch_before
        )

    @property
    def step(self) -> int:
        """The number of steps that are done."""
        return self._state.step

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
            self._state.start_values()
            self._agreement.settle(total)
        while self.step < total:
            if self._recorder.is_over(self.step):
                self._ending.end("done", 0, "")
            frame = frame_of_loop()
            ACTIVITY.loop = None if frame is None else frame.f_code
            self._recorder.begin(self.step, frame)
            del frame  # it would keep the program's variables alive
            started = time.monotonic()
            self._pace.begin()
            self._state.loss = None
            self._values.begin(self.step + 1)
            if self._faults.has_any:
                with self._pace.aside():
                    self._faults.meet(self.step)
            self._samples.begin()
            self._recovery.note_step(self.step)
            yield self.step
            self._end_step(started)
            self._agreement.settle(total)

    def _end_step(self, started: float) -> None:
        """Count the step as done, and report and record it."""
        self._state.step += 1
        loss = self._state.loss
        ACTIVITY.end_step(self.step)
        self._recorder.end(self.step, loss, self._samples.step_samples)
        self._load.note(samples=self._samples.advance())
        self._load.end()
        step_s = round(time.monotonic() - started, 6)
        self._pace.end()
        self._values.end(step_s)
        self._recovery.end_step(self.step, self._values.loss)
        self._cadence.note_step(step_s)
        self._channel.send("step", step=self.step, loss=loss, step_s=step_s, samples=self._samples.num_seen)
        self._report_pace()
        if self._state.checkpoints is not None:
            self._state.checkpoints.continuity.note_loss(loss)
        self._adviser.after_first_step(self._load.num_samples)

    def report(
        self,
        *,
        loss: float | torch.Tensor,
        tokens: int | None = None,
        padded: int | None = None,
        samples: int | None = None,
        grad_norm: float | torch.Tensor | None = None,
        epochs: float | None = None,
    ) -> None:
        """Report this step's loss. ``on_value_fault`` of ``start`` says what follows one that is not finite.

        ``tokens``: tokens that this rank trained on in this step; ``padded``: tokens that filled sequences up to equal
        lengths. ``samples``: needed if neither ``sample_indices`` nor a stream of ``samples`` chose them.
        ``grad_norm``: needed if ``clip_grad_norm`` did not compute it. ``epochs``: how many are done, such as 1.25;
        needed if neither ``sample_indices`` nor a stream chose the samples.
        """
        value = float(loss.item() if isinstance(loss, torch.Tensor) else loss)
        self._state.loss = value if math.isfinite(value) else None
        self._values.note_loss(value)
        self._pace.note(tokens=tokens, grad_norm=grad_norm)
        if grad_norm is not None:
            self._values.note_grad_norm(grad_norm)
        self._load.note(samples=samples, tokens=tokens, padded=padded)
        self._load.note_epochs(epochs)

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
        self._agreement.finish()
        self._ending.report("done", "")
        self._leave()

    def _report_pace(self, *, is_last: bool = False) -> None:
        if said := self._pace.word(is_last=is_last):
            of_rank = {**self._load.word(self._samples.epochs), **self._values.pace_word(), **self._pace.own_word()}
            self._channel.send("pace", step=self.step, **said, **of_rank)
            self._growth.take_reading(self.step)

    def _leave(self) -> None:
        ACTIVITY.move_to(END)
        self._pace.leave()
        self._adviser.leave()
        self.model = self._trained.model  # the wrapper around it refers to the process group
        self._ranks.leave()
