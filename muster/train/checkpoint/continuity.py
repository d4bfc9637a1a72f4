"""Whether a checkpoint is like the one before it, and training after a resume like training before: told, no more.

What verifies may still be wrong: a state that lost or doubled a part of itself has another size than its tensors, or
than before, as a whole or on one rank; and a resume with other samples, random numbers or optimizer shows in the loss.
"""

from __future__ import annotations

import statistics
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint import lineage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.train.checkpoint.manifest import Manifest
    from muster.train.checkpoint.volume import Volume
    from muster.train.report.wire import Channel

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


def rank_anomaly(sizes: Sequence[int], before: Sequence[int]) -> str:
    """As ``size_anomaly``, of one rank's file and the one that it wrote before: of the rank that differs the most."""
    pairs = list(enumerate(zip(sizes, before, strict=True)))
    found = [(abs(now - then), rank, now, then) for rank, (now, then) in pairs if size_anomaly(now, then)]
    if not found:
        return ""
    _, rank, now, then = max(found)
    return f"holds a part of rank {rank} that {size_anomaly(now, then)}"


def volume_anomaly(sizes: Sequence[int], volumes: Sequence[Volume], state_bytes: int | None) -> str:
    """What is to be said of a checkpoint that is not as large as its tensors; it needs none before it.

    ``state_bytes``: of model and optimizer as the program has them; None: nobody has counted.
    """
    saved_bytes = sum(volume.state_bytes for volume in volumes)
    if state_bytes is not None and saved_bytes != state_bytes:
        return f"holds {saved_bytes:,} bytes of model and optimizer, whose tensors are {state_bytes:,}, each once"
    for rank, (size, volume) in enumerate(zip(sizes, volumes, strict=True)):
        if size < volume.least_bytes:
            return f"holds {size:,} bytes of rank {rank}, whose tensors are {volume.least_bytes:,}"
        most_bytes = volume.most_bytes
        if most_bytes is not None and size > most_bytes + max(SIZE_FRACTION * most_bytes, _LEAST_BYTES):
            return (
                f"holds {size:,} bytes of rank {rank}, whose tensors are {volume.least_bytes:,}: is one of them a view "
                "of something larger?"
            )
    return ""


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
        self._before_sizes: tuple[int, ...] = ()
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

    def note_saved(
        self, step: int, sizes: Sequence[int], volumes: Sequence[Volume] = (), state_bytes: int | None = None
    ) -> None:
        """``sizes`` of the ranks' files, ``volumes`` of what was to be written to them.

        What a resume read is compared as a whole alone: its ranks may have shared the state out otherwise.
        """
        num_bytes, about = sum(sizes), f"the checkpoint of step {step} "
        words = size_anomaly(num_bytes, self._before_bytes)
        if not words and len(self._before_sizes) == len(sizes):
            words = rank_anomaly(sizes, self._before_sizes)
        self._before_bytes, self._before_sizes = num_bytes, tuple(sizes)
        self._say("checkpoint_size", words and f"{about}{words}: has its state lost a part?")
        unlike = volume_anomaly(sizes, volumes, state_bytes) if volumes else ""
        self._say("checkpoint_volume", unlike and about + unlike)

    def _say(self, code: str, words: str) -> None:
        if not words or not self._is_first or code in self._said:
            return
        self._said.add(code)
        sys.stderr.write(f"muster.train: {words}\n")
        self._channel.say("warning", code=code, message=words)
