"""The parts of a step's time, the run's speed and its memory, measured by hooks without calls in the program.

A step is cut into parts, each of which begins at the end of the one before:

| part | from | to |
|---|---|---|
| data | the step's begin, or the end of a backward pass that another forward pass follows | the model is called |
| forward | the model is called | its gradients begin: the loss is in it |
| backward | its gradients begin | the last gradient of this rank is there |
| collective | the last gradient of this rank is there | the average is there: the time that computing did not hide |
| optimizer | the end of the last backward pass, so it includes clipping | the optimizer has stepped |
| other | the optimizer has stepped, or a pass without gradients is done | the step's end |
| checkpoint | the end of the step before | this step's begin: saving, and the agreement with the other ranks |

Over gloo DDP exchanges nothing while it computes, and all of it is collective. Several ranks under anything else (FSDP,
tensor parallelism, an exchange of the program's own) exchange within their passes, which hooks cannot see. There
collective is null, and its time is in the other parts. On a GPU the borders are events on its stream, read after the
GPU has passed them: nothing waits for a figure.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed
from torch.compiler import is_compiling

from muster.train.parallel.shards import is_sharded
from muster.train.report.flops import peak_of, utilisation
from muster.train.report.own_time import OwnTime
from muster.train.report.waits import WAITS
from muster.train.runtime.devices import Host
from muster.train.runtime.model_outputs import tensors_of
from muster.train.watch.activity import ACTIVITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from muster.train.report.flops import Work
    from muster.train.report.own_time import Measured
    from muster.train.runtime.devices import Device

PARTS = ("data", "forward", "backward", "collective", "optimizer", "other", "checkpoint")
_UNDECIDED = "undecided"
"""Time after a backward pass: it is data if another forward pass follows, the optimizer's if its step follows."""
_BEFORE = {"forward": "data", "optimizer": "optimizer"}
REPORT_EVERY_S = 1.0
_MOST_PENDING = 64
_READ_AT = 16
"""Steps whose marks are added up at once: after a long step each line of code comes slowly from memory."""
_MIB = 1 << 20


class StepTiming:
    """Pace of one rank. ``begin`` and ``end`` frame a step; ``word`` returns a report, at most once a second."""

    def __init__(
        self,
        device: Device,
        *,
        is_on: bool,
        work: Work | None,
        ranks_per_replica: int,
        place: str = "",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the measurement. ``ranks_per_replica``: the number of ranks that share the work on one sample.

        Each of these ranks counts its share of the tokens. ``place``: the same for ranks that do the same work.
        """
        self._is_on = is_on
        self._device = device
        self._mark = device.mark
        self._now = now
        self._work = work
        peak = None if device.gpu is None else peak_of(device.gpu)
        self._peak_tflops = None if peak is None or work is None else peak.tflops_of(work.dtype)
        self._ranks_per_replica = ranks_per_replica
        self._sees_exchanges = True
        self._own = OwnTime(device, place)
        self._hooks: list[Any] = []
        self._marks: list[tuple[str, Any]] = []
        self._is_in_step = False
        self._is_in_backward = False
        self._pending: deque[tuple[list[tuple[str, Any]], Measured]] = deque(maxlen=_MOST_PENDING)
        self._sums = dict.fromkeys(PARTS, 0.0)
        self._num_summed = 0
        self._tokens: int | None = None
        self._has_reported_tokens = False
        self._grad_norm: float | torch.Tensor | None = None
        self._reported_at: float | None = None
        self._ended_at = 0.0

    def used_bytes(self) -> int:
        """Return the bytes of this rank's tensors now; on a host without a GPU, of its process."""
        return self._device.used_bytes()

    def watch(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Install the hooks, until ``leave``."""
        if not self._is_on:
            return
        self._sees_exchanges = _is_alone() or _is_under_ddp_alone(model)
        self._own.watch(sees_exchanges=self._sees_exchanges)
        self._hooks.append(model.register_forward_pre_hook(self._forward_begins))
        self._hooks.append(model.register_forward_hook(self._forward_ends))
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):  # a program may evaluate what is in it
            self._hooks.append(model.module.register_forward_pre_hook(self._note_forward))
        if optimizer is not None:
            self._hooks.append(optimizer.register_step_pre_hook(self._optimizer_begins))
            self._hooks.append(optimizer.register_step_post_hook(self._optimizer_ends))

    def __reduce__(self) -> tuple[Callable[[], StepTiming], tuple[()]]:
        """Pickle as a measurement that is switched off: copies of a model, in memory or in a file, carry its hooks."""
        return _switched_off, ()

    def leave(self) -> None:
        """Remove the hooks."""
        self._own.leave()
        while self._hooks:
            self._hooks.pop().remove()

    def begin(self) -> None:
        """Begin a step."""
        if not self._is_on:
            return
        if self._reported_at is None:
            self._reported_at = self._now()
        self._is_in_step = True
        self._own.begin()
        self._turn("data")

    def end(self) -> None:
        """End a step."""
        if not self._is_in_step:
            return
        self._turn("checkpoint")
        self._is_in_step = False
        self._ended_at = self._now()
        self._pending.append((self._marks, self._own.end()))
        self._marks = self._marks[-1:]
        if len(self._pending) >= _READ_AT:
            self._read()

    def note(self, *, tokens: int | None = None, grad_norm: float | torch.Tensor | None = None) -> None:
        """Add ``tokens`` of this rank in this step, in one or several calls, and store its gradient norm."""
        if tokens is not None:
            self._tokens = (self._tokens or 0) + max(
                int(tokens), 0
            )  # the whole report would be refused for a count below 0
            self._has_reported_tokens = True
        if grad_norm is not None and _is_whole(grad_norm):
            self._grad_norm = grad_norm.detach() if isinstance(grad_norm, torch.Tensor) else grad_norm

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Measure an exchange of gradients that the backward pass waits for."""
        self._turn("collective")
        try:
            yield
        finally:
            self._turn("backward")

    def word(self, *, is_last: bool = False) -> dict[str, float | int | None] | None:
        """Return means over the steps since the last report; None if there are none, or if the last report is too
        recent.
        """
        if self._reported_at is None:
            return None
        elapsed_s = self._ended_at - self._reported_at  # without the time after the last step, such as the last save
        if elapsed_s < REPORT_EVERY_S and not is_last:
            return None
        if is_last and self._tokens is None and self._has_reported_tokens:
            return None  # steps that the GPU has not finished: the report before has more data
        self._read()
        if self._num_summed == 0:
            return None
        said: dict[str, float | int | None] = {"num_steps": self._num_summed}
        said |= self._parts()
        rate = None if self._tokens is None else self._tokens / self._ranks_per_replica / max(elapsed_s, 1e-9)
        said |= {
            "tokens_per_s": rate,
            "grad_norm": _number(self._grad_norm),
            "memory_mib": round(self._device.memory_bytes() / _MIB, 1),
        }
        said |= self._utilisation(rate)
        self._sums = dict.fromkeys(PARTS, 0.0)
        self._num_summed = 0
        self._tokens = self._grad_norm = None
        self._reported_at += elapsed_s
        return said

    def own_word(self) -> dict[str, float | int | str]:
        """Return own compute, waits and their explanations, to go with a report of ``word``."""
        self._read()
        return self._own.word()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Measure what happens before the step's data as another part of it."""
        self._turn("other")
        try:
            yield
        finally:
            self._turn("data")

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Measure passes of the model that are no training as another part, whose hooks mark nothing."""
        with self.aside():
            was, self._is_in_step = self._is_in_step, False
            try:
                yield
            finally:
                self._is_in_step = was

    def _parts(self) -> dict[str, float | None]:
        """Return seconds a step for each part. A collective that hooks cannot see is null; its time counts
        as backward.
        """
        sums: dict[str, float | None] = dict(self._sums)
        if not self._sees_exchanges:
            sums |= {"backward": self._sums["backward"] + self._sums["collective"], "collective": None}
        num_steps = self._num_summed
        return {f"{part}_s": None if total is None else round(total / num_steps, 6) for part, total in sums.items()}

    def _turn(self, part: str) -> None:
        if is_compiling():
            return
        ACTIVITY.ticks += 1
        if self._is_in_step:
            self._marks.append((part, self._mark()))
            WAITS.is_covered = self._sees_exchanges and part == "collective"

    def _optimizer_begins(self, *_: object) -> None:
        self._turn("optimizer")

    def _optimizer_ends(self, *_: object) -> None:
        self._turn("other")

    def _note_forward(self, module: torch.nn.Module, _inputs: object) -> None:
        """Note that the program calls its model, to train or to evaluate. A copy of the model has this hook too."""
        if not is_compiling():
            ACTIVITY.note_forward(is_evaluating=not (module.training and torch.is_grad_enabled()))

    def _forward_begins(self, module: torch.nn.Module, inputs: object) -> None:
        self._note_forward(module, inputs)
        self._is_in_backward = False  # the last one may have failed
        self._turn("forward")

    def _forward_ends(self, _module: object, _inputs: object, output: object) -> None:
        if is_compiling() or not self._is_in_step:
            return
        outputs = (output,) if isinstance(output, torch.Tensor) else tensors_of(output)
        graded: list[Any] = [each for each in outputs if not each.is_leaf]
        for each in graded:
            each.register_hook(self._backward_begins)
        if not graded and not torch.is_grad_enabled():
            self._turn(_UNDECIDED)

    def _backward_begins(self, _gradient: torch.Tensor) -> None:
        """Mark the first gradient of a backward pass."""
        if not self._is_in_backward:
            self._is_in_backward = True
            self._turn("backward")
            _at_end_of_backward(self._gradients_are_here)

    def _gradients_are_here(self) -> None:
        """Mark the end of backward. DDP waits for other ranks in a callback queued earlier, so ours is queued again
        behind it.
        """
        self._is_in_backward = False
        self._turn("collective")
        _at_end_of_backward(self._average_is_here)

    def _average_is_here(self) -> None:
        self._turn(_UNDECIDED)

    def _read(self) -> None:
        """Add up the marks that the device has passed."""
        while self._pending:
            marks, measured = self._pending.popleft()
            try:
                if not self._device.has_passed(marks[-1][1]):
                    self._pending.appendleft((marks, measured))
                    return
                between = itertools.pairwise(mark for _, mark in marks)
                seconds = [max(self._device.seconds(began, ended), 0.0) for began, ended in between]
                taken = list(zip(_decided(marks), seconds, strict=True))
                self._own.add(measured, taken)
            except (RuntimeError, ValueError):  # marks of several streams or of a captured graph: no figure, no harm
                continue
            for part, each_s in taken:
                self._sums[part] += each_s
            self._num_summed += 1

    def _utilisation(self, rate: float | None) -> dict[str, float | int | None]:
        """Return MFU and HFU, or nulls if the program did not state a token's cost or the GPU's peak for its type is
        unknown.
        """
        if rate is None or self._work is None or self._peak_tflops is None:
            return {"mfu": None, "hfu": None}
        work = self._work
        found = utilisation(
            work.model,
            tokens_per_s=rate,
            num_gpus=1,
            peak_tflops=self._peak_tflops,
            attention=work.attention,
            recompute=work.recompute,
        )
        return {"mfu": round(found.mfu, 5), "hfu": round(found.hfu, 5)}


def _is_alone() -> bool:
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def _is_under_ddp_alone(model: torch.nn.Module) -> bool:
    """Return whether the model is under DDP and no parameter is sharded, since its pieces would be gathered within
    passes.
    """
    return isinstance(model, torch.nn.parallel.DistributedDataParallel) and not any(map(is_sharded, model.parameters()))


def _decided(marks: Sequence[tuple[str, Any]]) -> list[str]:
    """Return the part between each two marks of a step."""
    parts = [part for part, _ in marks]
    if "forward" not in parts:  # the model was called where no hook sees it
        parts = ["other" if part == "data" else part for part in parts]
    pairs = itertools.pairwise(parts)
    return [_BEFORE.get(following, "other") if part == _UNDECIDED else part for part, following in pairs]


def _at_end_of_backward(call: Callable[[], None]) -> None:
    """Call ``call`` at the end of the backward pass, as DDP and FSDP do; torch has no public way."""
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001
    engine.queue_callback(call)


def _is_whole(norm: float | torch.Tensor) -> bool:
    """Return whether the norm is whole on this rank. Reading a distributed tensor that is not would need all ranks."""
    return all(each.is_replicate() for each in getattr(norm, "placements", ()))


def _switched_off() -> StepTiming:
    return StepTiming(Host(), is_on=False, work=None, ranks_per_replica=1)


def _number(value: float | torch.Tensor | None) -> float | None:
    """Return a finite number, or None for any other value."""
    found = float(value) if value is not None else float("nan")
    return found if abs(found) < float("inf") else None
