"""The first module with a value that is not finite.

After a step the parameters are no evidence: one NaN in the loss is in all gradients, and the optimizer writes it into
all parameters. So a module is named at three moments:

- Before the optimizer steps, if the gradient norm or, on the CPU, the smallest gradient is not finite: the first
  parameter that is not finite, else the first gradient, if others are.
- After the step, if no more than a part of the parameters is not finite.
- By hooks on all modules, which read each output. That costs time, so they are armed only after a
  rollback, until the faulty step is passed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from muster.train.checkpoint.finite import worst_of
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.shards import is_sharded, local_of
from muster.train.runtime.model_outputs import tensors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_SUMMED: Final = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


class FirstModule:
    """Search of one rank. ``words``: what was found in this step; empty: nothing."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self.words = ""
        self._model = model
        self._exempt = {name for name, value in _values(model) if not _is_finite(value)}
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._trained = [each for each in model.parameters() if each.requires_grad]
        small = [each for each in self._trained if not each.is_cuda and not is_sharded(each)]
        self._smallest = min(small, key=torch.Tensor.numel, default=None)
        self._hooks: list[Any] = []
        self._armed_until = -1
        if optimizer is not None and self._smallest is not None:
            optimizer.register_step_pre_hook(_BeforeStep(self))

    def begin(self, step: int) -> None:
        """Begin a step. Hooks stay armed until the faulty step is passed."""
        self.words = ""
        if self._hooks and step > self._armed_until:
            self.disarm()

    def check_smallest(self) -> None:
        """Look at one small gradient before the optimizer steps: a NaN in the loss is in it."""
        gradient = None if self._smallest is None else self._smallest.grad
        if gradient is None or self.words:
            return
        if gradient.dtype in _SUMMED and is_plain(gradient) and math.isfinite(gradient.sum().item()):
            return  # a sum with NaN or an infinity is not finite
        if not _is_finite(gradient):
            self.examine()

    def examine(self) -> None:
        """Look at all parameters and gradients before the optimizer steps."""
        self.words = self.words or self._of_parameters(is_before_step=True) or self._of_gradients()

    def examine_after(self) -> None:
        """Look at the parameters after the step."""
        self.words = self.words or self._of_parameters(is_before_step=False)

    def _of_parameters(self, *, is_before_step: bool) -> str:
        """Return the first value of the model that is not finite. After a step that spoils all that is trained, none is
        the first.
        """
        if not is_before_step and not any(_is_finite(local_of(each)) for each in self._trained):
            return ""
        for name, value in _values(self._model):
            if name not in self._exempt and not _is_finite(value):
                return f"first in {name}, which holds {worst_of(value)}"
        return ""

    def _of_gradients(self) -> str:
        every = [
            (self._names[id(each)], local_of(each.grad)) for each in self._model.parameters() if each.grad is not None
        ]
        bad = [name for name, gradient in every if not _is_finite(gradient)]
        return f"in the gradient of {bad[0]}" if bad and len(bad) < max(len(every), 2) else ""

    def arm(self, until_step: int) -> None:
        """Read each module's output until that step is passed."""
        self.disarm()
        self._armed_until = until_step
        self._hooks.append(self._model.register_forward_pre_hook(self._input_of_model))
        for name, module in self._model.named_modules():
            self._hooks.append(module.register_forward_hook(_AfterModule(self, name or "the model")))

    def disarm(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _input_of_model(self, _module: object, inputs: object) -> None:
        if not self.words and any(not _is_finite(local_of(each)) for each in tensors_of(inputs)):
            self.words = "first in the input of the model"

    def note_output(self, name: str, output: object) -> None:
        """Record a module whose output is not finite; of several, the first of the step counts."""
        if not self.words:
            bad = next(filter(None, (worst_of(local_of(each)) for each in tensors_of(output))), None)
            if bad is not None:
                self.words = f"first in the output of {name}, which holds {bad}"


class _Copied:
    """Hook that a copy of a model or of an optimizer carries and that does nothing there."""

    def __init__(self, search: FirstModule | None) -> None:
        self._search = search

    def __reduce__(self) -> tuple[type[_Copied], tuple[None]]:
        return _Copied, (None,)

    def __call__(self, *_: object) -> None:
        """Do nothing."""


class _BeforeStep(_Copied):
    def __call__(self, *_: object) -> None:
        """Look before the optimizer steps."""
        if self._search is not None:
            self._search.check_smallest()


class _AfterModule(_Copied):
    def __init__(self, search: FirstModule | None, name: str) -> None:
        super().__init__(search)
        self._name = name

    def __call__(self, *arguments: object) -> None:
        """Read the module's output, which is the last argument."""
        if self._search is not None:
            self._search.note_output(self._name, arguments[-1])


def _values(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        yield name, local_of(value)


def _is_finite(value: torch.Tensor) -> bool:
    return worst_of(value) is None
