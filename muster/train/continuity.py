"""Whether a checkpoint is like the one before it, and training after a resume like training before: told, no more.

What verifies may still be wrong: a state that lost or doubled a part of itself changes its size, and a resume with
other samples, random numbers or optimizer shows in the loss.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from muster.train import lineage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.train.manifest import Manifest
    from muster.train.wire import Channel

SIZE_FRACTION = 0.05
"""So much larger or smaller at the same number of ranks is no chance: each value is saved once."""
_LEAST_BYTES = 64 << 10
"""What may come by itself, such as numpy's random numbers."""
LOSS_FRACTION = 0.02
LOSS_SPREADS = 3.0
_LOSSES_KEPT = 32
_LEAST_LOSSES = 8


def size_anomaly(num_bytes: int, before_bytes: int) -> str:
    """What is to be said of a checkpoint after one of ``before_bytes``; nothing where they are alike."""
    allowed_bytes = max(SIZE_FRACTION * before_bytes, _LEAST_BYTES)
    if before_bytes <= 0 or abs(num_bytes - before_bytes) <= allowed_bytes:
        return ""
    share = (num_bytes - before_bytes) / before_bytes
    word = "larger" if share > 0 else "smaller"
    return f"is {abs(share):.0%} {word} than the one before, {num_bytes:,} bytes after {before_bytes:,}"


def loss_anomaly(loss: float, saved: float, spread: float) -> str:
    """What is to be said of the first loss after a resume. ``spread``: the deviation of those before the save."""
    if abs(loss - saved) <= max(LOSS_SPREADS * spread, LOSS_FRACTION * abs(saved)):
        return ""
    return (
        f"the first loss after the resume is {loss:.5g}, and was {saved:.5g} ± {spread:.2g} when the checkpoint was "
        "made: other samples, another learning rate, or a state that lacks something?"
    )


class Continuity:
    """The first rank's word for all; each kind once."""

    def __init__(self, channel: Channel, rank: int) -> None:
        self._channel = channel
        self._is_first = rank == 0
        self._losses: deque[float] = deque(maxlen=_LOSSES_KEPT)
        self._before: Manifest | None = None
        self._before_bytes = 0
        self._said: set[str] = set()

    @property
    def spread(self) -> float | None:
        """The standard deviation of the newest losses; None while there are too few to say."""
        return statistics.pstdev(self._losses) if len(self._losses) >= _LEAST_LOSSES else None

    def resumed(self, about: Manifest, world_size: int) -> None:
        self._before = about
        self._before_bytes = about.num_bytes if about.world_size == world_size else 0

    def compare(self, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
        """The lineage of the checkpoint that is resumed from with this run's."""
        for code, words in lineage.changes(before, now):
            self._say(code, words)

    def note_loss(self, loss: float | None) -> None:
        """Of each step, in their order; None: it told none, or no finite number."""
        about, self._before = self._before, None
        if loss is None:
            return
        self._losses.append(loss)
        if about is not None and about.loss is not None and about.loss_spread is not None:
            self._say("loss_jump", loss_anomaly(loss, about.loss, about.loss_spread))

    def note_saved(self, step: int, num_bytes: int) -> None:
        words = size_anomaly(num_bytes, self._before_bytes)
        self._before_bytes = num_bytes
        self._say("checkpoint_size", words and f"the checkpoint of step {step} {words}: has its state lost a part?")

    def _say(self, code: str, words: str) -> None:
        if not words or not self._is_first or code in self._said:
            return
        self._said.add(code)
        sys.stderr.write(f"muster.train: {words}\n")
        self._channel.say("warning", code=code, message=words)
