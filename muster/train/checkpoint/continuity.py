"""Comparison of a checkpoint with the one before it, and of training after a resume with training before.

A checkpoint that verifies may still be wrong. A state that lost or doubled a part of itself differs in size from its
tensors or from the checkpoint before, as a whole or on one rank. A resume with other samples, random numbers or
optimizer shows in the loss. A difference is reported and changes nothing.
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
"""A larger difference in size at the same number of ranks is no chance: each value is saved once."""
_LEAST_BYTES = 64 << 10
"""Bytes by which a part may differ without a fault, such as by numpy's random numbers."""
LOSS_FRACTION = 0.02
LOSS_SPREADS = 3.0
_LOSSES_KEPT = 32
_LEAST_LOSSES = 8


def size_anomaly(num_bytes: int, before_bytes: int) -> str:
    """Return a warning about a checkpoint's size after one of ``before_bytes``; an empty text if the sizes
    are alike.
    """
    allowed_bytes = max(SIZE_FRACTION * before_bytes, _LEAST_BYTES)
    if before_bytes <= 0 or abs(num_bytes - before_bytes) <= allowed_bytes:
        return ""
    share = (num_bytes - before_bytes) / before_bytes
    word = "larger" if share > 0 else "smaller"
    return f"is {abs(share):.0%} {word} than the one before, {num_bytes:,} bytes after {before_bytes:,}"


def rank_anomaly(sizes: Sequence[int], before: Sequence[int]) -> str:
    """Return the ``size_anomaly`` of the rank whose file differs the most from the one that it wrote before."""
    pairs = list(enumerate(zip(sizes, before, strict=True)))
    found = [(abs(now - then), rank, now, then) for rank, (now, then) in pairs if size_anomaly(now, then)]
    if not found:
        return ""
    _, rank, now, then = max(found)
    return f"holds a part of rank {rank} that {size_anomaly(now, then)}"


def volume_anomaly(sizes: Sequence[int], volumes: Sequence[Volume], state_bytes: int | None) -> str:
    """Return a warning about a checkpoint that is not as large as its tensors; it needs no earlier checkpoint.

    ``state_bytes``: bytes of model and optimizer as the program has them; None: they were not counted.
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
    """Return a warning about the first loss after a resume. ``spread``: the deviation of the losses before the save."""
    if abs(loss - saved) <= max(LOSS_SPREADS * spread, LOSS_FRACTION * abs(saved)):
        return ""
    return (
        f"the first loss after the resume is {loss:.5g}, and was {saved:.5g} ± {spread:.2g} when the checkpoint was "
        "made: other samples, another learning rate, or a state that lacks something?"
    )


class Continuity:
    """Comparisons of the first rank, for all ranks; each kind of warning is reported once."""

    def __init__(self, channel: Channel, rank: int) -> None:
        self._channel = channel
        self._is_first = rank == 0
        self._losses: deque[float] = deque(maxlen=_LOSSES_KEPT)
        self._before: Manifest | None = None
        self._before_bytes = 0
        self._before_sizes: tuple[int, ...] = ()
        self._reported: set[str] = set()

    @property
    def spread(self) -> float | None:
        """The standard deviation of the newest losses; None while there are too few."""
        return statistics.pstdev(self._losses) if len(self._losses) >= _LEAST_LOSSES else None

    def resumed(self, about: Manifest, world_size: int) -> None:
        self._before = about
        self._before_bytes = about.num_bytes if about.world_size == world_size else 0

    def compare(self, before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> None:
        """Compare the lineage of the checkpoint that is resumed from with this run's."""
        for code, words in lineage.changes(before, now):
            self._report(code, words)

    def note_loss(self, loss: float | None) -> None:
        """Record the loss of each step, in their order; None: the program reported none, or no finite number."""
        about, self._before = self._before, None
        if loss is None:
            return
        self._losses.append(loss)
        if about is not None and about.loss is not None and about.loss_spread is not None:
            self._report("loss_jump", loss_anomaly(loss, about.loss, about.loss_spread))

    def note_saved(
        self, step: int, sizes: Sequence[int], volumes: Sequence[Volume] = (), state_bytes: int | None = None
    ) -> None:
        """Compare a saved checkpoint. ``sizes`` of the ranks' files, ``volumes`` of the state that they were to hold.

        The checkpoint that a resume read is compared as a whole alone: its ranks may have shared the state out in
        another way.
        """
        num_bytes, about = sum(sizes), f"the checkpoint of step {step} "
        words = size_anomaly(num_bytes, self._before_bytes)
        if not words and len(self._before_sizes) == len(sizes):
            words = rank_anomaly(sizes, self._before_sizes)
        self._before_bytes, self._before_sizes = num_bytes, tuple(sizes)
        self._report("checkpoint_size", words and f"{about}{words}: has its state lost a part?")
        unlike = volume_anomaly(sizes, volumes, state_bytes) if volumes else ""
        self._report("checkpoint_volume", unlike and about + unlike)

    def _report(self, code: str, words: str) -> None:
        if not words or not self._is_first or code in self._reported:
            return
        self._reported.add(code)
        sys.stderr.write(f"muster.train: {words}\n")
        self._channel.send("warning", code=code, message=words)
