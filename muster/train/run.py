"""One training run: where it begins, when it saves, and the step at which all ranks stop together."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from muster.train import state
from muster.train.channel import Channel
from muster.train.checkpoints import Checkpoints, Trained
from muster.train.ranks import Ranks
from muster.train.samples import Samples
from muster.train.surroundings import (
    EXIT_NEVER_RESTART,
    EXIT_STOPPED_WITH_CHECKPOINT,
    EXIT_STOPPED_WITHOUT,
    StaleFenceError,
    Surroundings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_DEADLINE_MS = 1 << 53
_SAVE_MARGIN = 1.5
_UNKNOWN_SAVE_S = 1.0


def start(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    scheduler: state.Stateful | None = None,
    *,
    checkpoint_every: int = 100,
    keep: int = 3,
    seed: int = 0,
    deterministic: bool = True,
    data_parallel: bool = True,
) -> Run:
    """Join the other ranks, restore the newest checkpoint that verifies, and be ready for the next step.

    ``checkpoint_every`` counts steps (0: only when the job stops); ``keep`` generations stay. ``deterministic`` asks
    torch for repeatable kernels and one thread a rank on the CPU: then a resumed run equals an undisturbed one bit for
    bit at the same number of ranks. ``data_parallel`` wraps the model in DDP where there are several ranks.

    Exits with 93 when a newer attempt of the job has begun.

    Raises:
        ValueError: a variable of the launcher that cannot be read.
        CoverageError: the newest checkpoint is of another program.
    """
    around = Surroundings.of()
    channel = Channel(around.socket_path)
    channel.say("hello", rank=around.rank, world_size=around.world_size, pid=os.getpid())
    if deterministic:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        torch.set_num_threads(1)
    ranks = Ranks(around.rank, around.world_size)
    if ranks.world_size > 1 and data_parallel:
        model = torch.nn.parallel.DistributedDataParallel(model)
    state.seed_rank(seed, ranks.rank)
    return Run(around, ranks, channel, Trained(model, optimizer, scheduler), checkpoint_every, keep, seed)


class Run:
    """Made by ``start``. ``model`` is what to call; ``step`` counts the steps that are done."""

    def __init__(
        self,
        around: Surroundings,
        ranks: Ranks,
        channel: Channel,
        trained: Trained,
        checkpoint_every: int,
        keep: int,
        seed: int,
    ) -> None:
        self.model = trained.model
        self.step = 0
        self.rank = ranks.rank
        self.world_size = ranks.world_size
        self._ranks = ranks
        self._channel = channel
        inner = trained.model
        if isinstance(inner, torch.nn.parallel.DistributedDataParallel):
            inner = inner.module
        self._trained = Trained(inner, trained.optimizer, trained.scheduler)
        self._every = checkpoint_every
        self._samples = Samples(seed, ranks.rank, ranks.world_size)
        self._loss: float | None = None
        self._stop_reason: str | None = None
        self._deadline_ms = _NO_DEADLINE_MS
        self._wants_checkpoint = False
        self._saved_step = -1
        self._checkpoints: Checkpoints | None = None
        signal.signal(signal.SIGTERM, self._note_signal)
        if around.checkpoint_dir is not None:
            try:
                self._checkpoints = Checkpoints(around, ranks, channel, around.checkpoint_dir, keep=keep)
            except StaleFenceError as fault:
                self._end("failed", EXIT_NEVER_RESTART, str(fault))
            self._resume()

    @property
    def stop_requested(self) -> bool:
        """Whether this rank has heard that the job must stop; all ranks agree on the step at the end of this one."""
        self._listen()
        return self._stop_reason is not None

    def steps(self, total: int) -> Iterator[int]:
        """The steps still to do, from 0. Leaves the process when the job has to stop, on all ranks after one step."""
        while self.step < total:
            started = time.monotonic()
            self._loss = None
            yield self.step
            self.step += 1
            self._samples.advance()
            step_s = round(time.monotonic() - started, 6)
            self._channel.say("step", step=self.step, loss=self._loss, step_s=step_s)
            self._agree(total)

    def report(self, *, loss: float | torch.Tensor) -> None:
        """This step's loss; what is no finite number is reported as none."""
        value = float(loss.item() if isinstance(loss, torch.Tensor) else loss)
        self._loss = value if math.isfinite(value) else None

    def sample_indices(self, num_samples: int, batch_size: int) -> list[int]:
        """This rank's ``batch_size`` samples of this step: a pure function of seed, position and number of ranks."""
        return self._samples.indices(num_samples, batch_size)

    def finish(self) -> None:
        """All steps are done: a last checkpoint where there is none of this step, and the outcome."""
        self._save()
        self._outcome("done", "")
        self._ranks.leave()

    def _resume(self) -> None:
        manifest = None if self._checkpoints is None else self._checkpoints.load(self._trained)
        if manifest is None:
            self._channel.say("resumed", step=0, generation="")
            return
        self.step = self._saved_step = int(manifest["step"])
        self._samples.position = int(manifest["position"])
        generation = f"step-{manifest['step']:08d}/gen-{manifest['fence']}"
        self._channel.say("resumed", step=self.step, generation=generation)

    def _agree(self, total: int) -> None:
        """After a step, all ranks together: save if it is time or anyone was asked to, stop if anyone must."""
        self._listen()
        must_stop, wants_checkpoint, minus_deadline = self._ranks.max(
            [self._stop_reason is not None, self._wants_checkpoint, -self._deadline_ms]
        )
        if must_stop and self.step < total:
            self._stop(-minus_deadline)
        is_due = self._every > 0 and self.step % self._every == 0
        if is_due or wants_checkpoint:
            self._wants_checkpoint = False
            self._save()

    def _stop(self, deadline_ms: int) -> None:
        """Save if the time left is enough for one, by the slowest rank's clock and experience, and leave."""
        known_s = self._checkpoints.longest_save_s if self._checkpoints is not None else 0.0
        needed_ms = round(max(known_s * _SAVE_MARGIN, _UNKNOWN_SAVE_S) * 1000)
        (is_late,) = self._ranks.max([time.time_ns() // 1_000_000 + needed_ms > deadline_ms])
        why = self._stop_reason or "another rank was told"
        if not is_late and self._save():
            self._end("stopped_with_checkpoint", EXIT_STOPPED_WITH_CHECKPOINT, why)
        self._end("stopped_without", EXIT_STOPPED_WITHOUT, why)

    def _save(self) -> bool:
        if self._checkpoints is None:
            return False
        if self._saved_step == self.step:
            return True
        facts = {"position": self._samples.position, "loss": self._loss}
        if self._checkpoints.save(self._trained, self.step, facts):
            self._saved_step = self.step
            return True
        return False

    def _outcome(self, exit_word: str, message: str) -> None:
        if self._checkpoints is not None:
            self._checkpoints.settle()
        self._channel.say("outcome", exit=exit_word, step=self.step, message=message[:500])
        self._channel.close()

    def _end(self, exit_word: str, code: int, message: str) -> None:
        self._outcome(exit_word, message)
        self._ranks.leave()
        sys.exit(code)

    def _note_signal(self, *_: object) -> None:
        """No work in a handler: the next agreement sees it."""
        self._stop_reason = self._stop_reason or "SIGTERM"

    def _listen(self) -> None:
        for message in self._channel.hear():
            if message.get("type") == "stop":
                self._stop_reason = str(message.get("reason"))
                deadline: Any = message.get("deadline_unix_ms")
                if isinstance(deadline, int):
                    self._deadline_ms = min(self._deadline_ms, deadline)
            elif message.get("type") == "checkpoint_now":
                self._wants_checkpoint = True
