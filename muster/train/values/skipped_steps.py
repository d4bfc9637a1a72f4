"""Steps that a gradient scaler skipped: gradients in half precision were not finite, so it lowered its scale.

A few are how a scaler finds its scale. Many in a row mean that the training does not move. The scale is read one step
later if it is on a GPU, so that no step waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable


class SkippedSteps:
    """Count of the skipped steps of one rank. ``scalers``: the program's extras; others than scalers do not count."""

    def __init__(self, scalers: Iterable[object]) -> None:
        self._scaler: Any = next((each for each in scalers if isinstance(each, torch.amp.GradScaler)), None)
        self._before: float | None = None
        self._waiting: torch.Tensor | None = None
        self._count = 0

    def end_step(self) -> None:
        """Look at the scale after a step."""
        scale = None if self._scaler is None else self._scaler._scale  # noqa: SLF001  # ``get_scale`` waits for a GPU
        if not isinstance(scale, torch.Tensor):
            return
        waiting, self._waiting = self._waiting, scale.detach().clone() if scale.is_cuda else None
        read = scale if waiting is None and not scale.is_cuda else waiting
        if read is None:
            return
        now = float(read)
        self._count += self._before is not None and now < self._before
        self._before = now

    def word(self) -> dict[str, int]:
        """Return the count since the last call, for a report of the pace; nothing without a scaler."""
        if self._scaler is None:
            return {}
        count, self._count = self._count, 0
        return {"skipped_steps": count}
