"""Losses and gradient norms that are not finite, compared over all ranks after each step.

A step that a gradient scaler skipped is none: there the optimizer did not step, and the scaler has lowered its scale.
A rank that never reported a finite loss, while others do, has none to report, such as a pipeline's first stage.

A gradient norm on a GPU is read one step later, when it has been computed, so that no step waits for it.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from muster.train.parallel.naming import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from muster.train.parallel.ranks import Agreement

_MOST_ORIGINS = 4


class DivergedError(Exception):
    """A value of the training is not finite: what follows is worth nothing.

    ``step``: the first step after which the state is not to be trusted. ``ranks``: the ranks with such a value, if it
    is known.
    """

    def __init__(self, words: str, *, step: int, ranks: Sequence[int] = ()) -> None:
        super().__init__(words)
        self.step = step
        self.ranks = tuple(ranks)

    def __reduce__(self) -> tuple[Callable[[], DivergedError], tuple[()]]:
        """Pickle with all fields: a rank sends it to the others."""
        return partial(DivergedError, str(self), step=self.step, ranks=self.ranks), ()


class Divergence:
    """Losses and gradient norms of one rank. ``begin`` begins a step; ``figures`` and ``require_none`` end it.

    ``loss``, ``norm``: the values of this step; the norm of a GPU is of the step before.
    """

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self.norm: float | None = None
        self._is_late = False
        self._steps = _OptimizerSteps()
        self._is_stepping_known = optimizer is not None
        if optimizer is not None:
            optimizer.register_step_post_hook(self._steps)
        self._had_finite_loss = False
        self._loss: float | None = None
        self._norm: float | torch.Tensor | None = None
        self._earlier_norm: torch.Tensor | None = None
        self._why = ""
        self._is_norm_late = False

    def begin(self) -> None:
        self._loss = self._norm = None
        self._steps.begin()

    def forget(self) -> None:
        """Forget the values so far: an earlier state is restored."""
        self._loss = self._norm = self._earlier_norm = None

    @property
    def loss(self) -> float | None:
        return self._loss

    def note_loss(self, loss: float) -> None:
        """Record a loss of this step; of several, the first that is not finite counts."""
        if self._loss is None or math.isfinite(self._loss):
            self._loss = loss

    def note_grad_norm(self, norm: float | torch.Tensor) -> None:
        """Record the gradient norm of this step, as far as it is whole on this rank."""
        if all(each.is_replicate() for each in getattr(norm, "placements", ())):
            self._norm = norm.detach() if isinstance(norm, torch.Tensor) else norm

    def figures(self) -> list[int]:
        """Return figures of which all ranks take the highest: a value is not finite; so is a loss, on a rank that never
        had a finite one; a loss is finite.
        """
        loss, norm = self._loss, self._norm_to_read()
        self.norm = norm
        is_loss_finite = loss is not None and math.isfinite(loss)
        self._had_finite_loss |= is_loss_finite
        has_bad_loss = loss is not None and not is_loss_finite and self._counts()
        has_bad_norm = norm is not None and not math.isfinite(norm)
        self._why = f"the loss is {loss}" if has_bad_loss else f"the gradient norm is {norm}"
        self._why = self._why if has_bad_loss or has_bad_norm else ""
        self._is_late = has_bad_norm and not has_bad_loss and self._is_norm_late
        is_certain = has_bad_norm or (has_bad_loss and self._had_finite_loss)
        return [int(is_certain), int(has_bad_loss), int(is_loss_finite)]

    def _counts(self) -> bool:
        return not self._is_stepping_known or self._steps.has_stepped()

    def _norm_to_read(self) -> float | None:
        """Return the norm of this step; on a GPU, that of the step before. None if the optimizer skipped the step."""
        norm, earlier = self._norm, self._earlier_norm
        self._earlier_norm, self._is_norm_late = None, earlier is not None
        if isinstance(norm, torch.Tensor) and norm.is_cuda:
            self._earlier_norm = norm if self._counts() else None
        elif norm is not None and self._counts():
            self._is_norm_late = False
            return float(norm)
        return None if earlier is None else float(earlier)

    def is_bad(self, highest: Sequence[int]) -> bool:
        """Return whether any rank has a value that is not finite."""
        is_certain, is_doubtful, has_finite_loss = highest
        return bool(is_certain or (is_doubtful and not has_finite_loss))

    def require_none(self, step: int, highest: Sequence[int], ranks: Agreement, *, origin: str = "") -> None:
        """Require that no rank has a value that is not finite. ``origin``: where this rank has found the first one.

        Raises, on every rank:
            DivergedError: one has; it names the value, the step and the ranks.
        """
        if not self.is_bad(highest):
            return
        found: dict[str, list[int]] = {}
        origins: dict[str, list[int]] = {}
        told = ranks.gather((self._why, origin, self._is_late))
        for rank, (why, first, _) in enumerate(told):
            if why:
                found.setdefault(why, []).append(rank)
            if first and why:  # on other ranks a value of this one has come with the gradients
                origins.setdefault(first, []).append(rank)
        words = "; ".join(f"{why} on {ranks_in_words(where)}" for why, where in found.items())
        words += "".join(
            f"; {first} on {ranks_in_words(where)}" for first, where in list(origins.items())[:_MOST_ORIGINS]
        )
        is_late = any(late for why, _, late in told if why) and all(late for why, _, late in told if why)
        bad = [rank for rank, (why, _, _) in enumerate(told) if why]
        raise DivergedError(f"diverged at step {step}: {words}", step=step - is_late, ranks=bad)


class _OptimizerSteps:
    """Hook of an optimizer. It holds plain values alone, since copies of an optimizer carry its hooks."""

    def __init__(self) -> None:
        self._has_stepped = False
        self._found_inf: torch.Tensor | None = None

    def __call__(self, optimizer: Any, *_: object) -> None:
        """Record a step. A scaler lets a fused optimizer skip by itself, and marks that as ``found_inf``."""
        self._has_stepped = True
        self._found_inf = getattr(optimizer, "found_inf", None)

    def begin(self) -> None:
        self._has_stepped, self._found_inf = False, None

    def has_stepped(self) -> bool:
        return self._has_stepped and not (self._found_inf is not None and bool(self._found_inf.any()))
