"""Losses and gradient norms that are not finite, compared over all ranks after each step.

A step that a gradient scaler skipped is none: there the optimizer did not step, and the scaler has lowered its scale.
A rank that never reported a finite loss, while others do, has none to report, such as a pipeline's first stage.

A gradient norm on a GPU is read one step later, when it has been computed, so that no step waits for it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from muster.train.parallel.naming import ranks_in_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.train.parallel.ranks import Agreement


class DivergedError(Exception):
    """A value of the training is not finite: what follows is worth nothing."""


class Divergence:
    """Losses and gradient norms of one rank. ``begin`` begins a step; ``figures`` and ``require_none`` end it."""

    def __init__(self, optimizer: torch.optim.Optimizer | None) -> None:
        self._steps = _OptimizerSteps()
        self._is_stepping_known = optimizer is not None
        if optimizer is not None:
            optimizer.register_step_post_hook(self._steps)
        self._had_finite_loss = False
        self._loss: float | None = None
        self._norm: float | torch.Tensor | None = None
        self._earlier_norm: torch.Tensor | None = None
        self._why = ""

    def begin(self) -> None:
        self._loss = self._norm = None
        self._steps.begin()

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
        is_loss_finite = loss is not None and math.isfinite(loss)
        self._had_finite_loss |= is_loss_finite
        has_bad_loss = loss is not None and not is_loss_finite and self._counts()
        has_bad_norm = norm is not None and not math.isfinite(norm)
        self._why = f"the loss is {loss}" if has_bad_loss else f"the gradient norm is {norm}"
        self._why = self._why if has_bad_loss or has_bad_norm else ""
        is_certain = has_bad_norm or (has_bad_loss and self._had_finite_loss)
        return [int(is_certain), int(has_bad_loss), int(is_loss_finite)]

    def _counts(self) -> bool:
        return not self._is_stepping_known or self._steps.has_stepped()

    def _norm_to_read(self) -> float | None:
        """Return the norm of this step; on a GPU, that of the step before. None if the optimizer skipped the step."""
        norm, earlier = self._norm, self._earlier_norm
        self._earlier_norm = None
        if isinstance(norm, torch.Tensor) and norm.is_cuda:
            self._earlier_norm = norm if self._counts() else None
            return None if earlier is None else float(earlier)
        if norm is not None and not math.isfinite(found := float(norm)):
            return found if self._counts() else None
        return None if earlier is None else float(earlier)

    def require_none(self, step: int, highest: Sequence[int], ranks: Agreement) -> None:
        """Require that no rank has a value that is not finite.

        Raises, on every rank:
            DivergedError: one has; it names the value, the step and the ranks.
        """
        is_certain, is_doubtful, has_finite_loss = highest
        if not (is_certain or (is_doubtful and not has_finite_loss)):
            return
        found: dict[str, list[int]] = {}
        for rank, why in enumerate(ranks.gather(self._why)):
            if why:
                found.setdefault(why, []).append(rank)
        words = "; ".join(f"{why} on {ranks_in_words(where)}" for why, where in found.items())
        raise DivergedError(f"diverged at step {step}: {words}")


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
