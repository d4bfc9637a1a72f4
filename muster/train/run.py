"""One training run: where it begins, when it saves, and the step at which all ranks stop together."""

from __future__ import annotations

import math
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import torch

from muster.train import state
from muster.train.averaging import average_in_rank_order
from muster.train.checkpoints import Checkpoints
from muster.train.fences import StaleFenceError
from muster.train.generations import Generation
from muster.train.orders import Orders
from muster.train.ranks import Ranks
from muster.train.samples import Samples
from muster.train.state import Stateful, Trained
from muster.train.surroundings import (
    EXIT_NEVER_RESTART,
    EXIT_STOPPED_WITH_CHECKPOINT,
    EXIT_STOPPED_WITHOUT,
    Surroundings,
)
from muster.train.wire import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

_SAVE_MARGIN = 1.5
_UNKNOWN_SAVE_S = 1.0
_SHORTEST_SAVE_S = 0.2
_MOST_SETTLING_S = 3600.0
_LEAVING_S = 0.2
_MOST_STEPS_TO_RETRY = 64


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: Stateful | None = None,
    *,
    extras: Mapping[str, Stateful] | None = None,
    checkpoint_every: int = 100,
    keep: int = 3,
    seed: int = 0,
    deterministic: bool = True,
    data_parallel: bool = True,
    patience_s: float = 1800.0,
) -> Run:
    """Join the other ranks, restore the newest checkpoint that verifies, and be ready for the next step.

    ``checkpoint_every`` counts steps (0: only when the job stops); ``keep`` generations stay. ``deterministic`` asks
    torch for repeatable kernels, and for one thread a rank on the CPU: then a resumed run equals an undisturbed one
    bit for bit at the same number of ranks. ``data_parallel`` wraps the model in DDP where there are several ranks.
    ``extras`` is whatever else has a state, such as a gradient scaler. ``patience_s``: how long one rank may keep the
    others waiting.

    Exits with 93 when a newer attempt of the job has begun.

    Raises:
        ValueError: a variable of the launcher that cannot be read.
        CoverageError: the newest checkpoint is of another program.
        OSError: the checkpoint folder cannot be written.
    """
    around = Surroundings.of()
    channel = Channel(around.socket_path)
    channel.say("hello", rank=around.rank, world_size=around.world_size, pid=os.getpid())
    orders = Orders(channel, around.stop_notice_s)
    orders.watch_signals()
    has_gpu = any(parameter.is_cuda for parameter in model.parameters())
    if deterministic:
        _ask_for_determinism(has_gpu=has_gpu)
    ranks = Ranks(
        around.rank, around.world_size, is_launched=around.is_launched, has_gpu=has_gpu, patience_s=patience_s
    )
    state.seed_rank(seed, ranks.rank)
    return Run(
        (around, ranks, channel, orders),
        Trained(model, optimizer, scheduler, extras or {}),
        checkpoint_every=checkpoint_every,
        keep=keep,
        seed=seed,
        data_parallel=data_parallel,
        is_steady=deterministic and not has_gpu,
    )


def _ask_for_determinism(*, has_gpu: bool) -> None:
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    if has_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    else:
        torch.set_num_threads(1)


class Run:
    """Made by ``start``. ``model`` is what to call; ``step`` counts the steps that are done."""

    def __init__(
        self,
        joined: tuple[Surroundings, Ranks, Channel, Orders],
        trained: Trained,
        *,
        checkpoint_every: int,
        keep: int,
        seed: int,
        data_parallel: bool,
        is_steady: bool,
    ) -> None:
        around, self._ranks, self._channel, self._orders = joined
        self.step = 0
        self.rank = self._ranks.rank
        self.world_size = self._ranks.world_size
        self.model = trained.model
        inner = trained.model
        if isinstance(inner, torch.nn.parallel.DistributedDataParallel):
            inner = inner.module
        elif data_parallel and self.world_size > 1:
            self.model = torch.nn.parallel.DistributedDataParallel(inner)
            if is_steady:
                average_in_rank_order(self.model)
        self._trained = replace(trained, model=inner)
        self._every = checkpoint_every
        self._samples = Samples(seed, self.rank, self.world_size)
        self._loss: float | None = None
        self._saved_step = -1
        self._num_failed_saves = 0
        self._retry_at = -1
        self._has_ended = False
        self._next_hook, sys.excepthook = sys.excepthook, self._note_crash
        self._checkpoints: Checkpoints | None = None
        if around.checkpoint_dir is not None:
            try:
                self._checkpoints = Checkpoints(around, self._ranks, self._channel, around.checkpoint_dir, keep=keep)
            except StaleFenceError as fault:
                self._end("failed", EXIT_NEVER_RESTART, str(fault))
        self._resume()

    @property
    def stop_requested(self) -> bool:
        """Whether this rank has heard that the job must stop; all ranks agree on the step at the end of this one."""
        self._orders.listen()
        return self._orders.stop_reason is not None

    def steps(self, total: int) -> Iterator[int]:
        """The steps still to do, from 0. Leaves the process when the job has to stop, on all ranks after one step."""
        if self.step < total:
            self._agree(total, is_due=False)
        while self.step < total:
            started = time.monotonic()
            self._loss = None
            yield self.step
            self.step += 1
            self._samples.advance()
            step_s = round(time.monotonic() - started, 6)
            self._channel.say("step", step=self.step, loss=self._loss, step_s=step_s, samples=self._samples.position)
            self._agree(total, is_due=self._every > 0 and self.step % self._every == 0)

    def report(self, *, loss: float | torch.Tensor) -> None:
        """This step's loss; what is no finite number is reported as none."""
        value = float(loss.item() if isinstance(loss, torch.Tensor) else loss)
        self._loss = value if math.isfinite(value) else None

    def sample_indices(self, num_samples: int, batch_size: int) -> list[int]:
        """This rank's ``batch_size`` samples of this step: a pure function of seed, position and number of ranks."""
        return self._samples.indices(num_samples, batch_size)

    def finish(self) -> None:
        """All steps are done: a last checkpoint where there is none of this step, and the outcome."""
        is_kept = self._save(is_last=True) or self._checkpoints is None
        self._outcome("done", "" if is_kept else "the last checkpoint could not be saved")
        self._leave()

    def _leave(self) -> None:
        self.model = self._trained.model  # what wraps it holds the process group
        self._ranks.leave()

    def _resume(self) -> None:
        about = None if self._checkpoints is None else self._checkpoints.load(self._trained)
        if about is None:
            self._channel.say("resumed", step=0, generation="")
            return
        self.step = self._saved_step = about.step
        self._samples.position = about.position
        self._channel.say("resumed", step=self.step, generation=Generation(about.step, about.fence).name)

    def _agree(self, total: int, *, is_due: bool) -> None:
        """Between steps, all ranks together: save if it is time or anyone was asked to, stop if anyone must."""
        orders = self._orders
        orders.listen()
        must_stop, wants_checkpoint, minus_deadline = self._ranks.max(
            [orders.stop_reason is not None, orders.wants_checkpoint, -orders.deadline_ms]
        )
        if must_stop and self.step < total:
            self._stop(-minus_deadline)
        if is_due or wants_checkpoint or self.step == self._retry_at:
            orders.wants_checkpoint = False
            self._save()

    def _stop(self, deadline_ms: int) -> None:
        """Save if the time left is enough for one, by the slowest rank's clock and experience, and leave."""
        why = self._orders.stop_reason or "another rank was told"
        known_s = self._checkpoints.longest_save_s if self._checkpoints is not None else 0.0
        needed_s = max(known_s * _SAVE_MARGIN, _SHORTEST_SAVE_S) if known_s else _UNKNOWN_SAVE_S
        left_s = deadline_ms / 1000 - time.time()
        (is_late,) = self._ranks.max([needed_s > left_s])
        has_saved = self._saved_step == self.step or (self.step > 0 and not is_late and self._save(is_last=True))
        left_s = min(max(0.0, deadline_ms / 1000 - time.time() - _LEAVING_S), _MOST_SETTLING_S)
        if has_saved:
            self._end("stopped_with_checkpoint", EXIT_STOPPED_WITH_CHECKPOINT, why, within_s=left_s)
        self._end("stopped_without", EXIT_STOPPED_WITHOUT, why, within_s=left_s)

    def _save(self, *, is_last: bool = False) -> bool:
        if self._checkpoints is None:
            return False
        if self._saved_step == self.step:
            return True
        try:
            position = self._samples.position
            is_saved = self._checkpoints.save(self._trained, self.step, position, self._loss, is_last=is_last)
        except StaleFenceError as fault:
            self._end("failed", EXIT_NEVER_RESTART, str(fault))
        if is_saved:
            self._saved_step, self._num_failed_saves, self._retry_at = self.step, 0, -1
        else:
            self._retry_at = self.step + min(2**self._num_failed_saves, _MOST_STEPS_TO_RETRY)
            self._num_failed_saves += 1
        return is_saved

    def _outcome(self, exit_word: str, message: str, *, within_s: float | None = None) -> None:
        self._has_ended = True
        if self._checkpoints is not None:
            self._checkpoints.settle(within_s)
        dropped_lines = self._channel.dropped_lines
        self._channel.say("outcome", exit=exit_word, step=self.step, message=message, dropped_lines=dropped_lines)
        self._channel.close()

    def _end(self, exit_word: str, code: int, message: str, *, within_s: float | None = None) -> NoReturn:
        self._outcome(exit_word, message, within_s=within_s)
        self._leave()
        sys.exit(code)

    def _note_crash(self, kind: type[BaseException], fault: BaseException, traceback: TracebackType | None) -> None:
        """The program raises: the supervisor hears it before the process is gone."""
        if not self._has_ended:
            self._has_ended = True
            self._channel.say("outcome", exit="failed", step=self.step, message=f"{kind.__name__}: {fault}")
            self._channel.close()
        self._next_hook(kind, fault, traceback)
