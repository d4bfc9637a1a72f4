"""Samples that a rank sees at a step: a pure function of seed, position and number of ranks. One integer is saved."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from muster.train.parallel.naming import ranks_in_words
from muster.train.watch.activity import ACTIVITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.train.parallel.ranks import Agreement

_ROUNDS = 6
NO_SAMPLES = -(1 << 62)
"""Figure of a rank whose share another rank may read."""


class Samples:
    """Samples of one rank. ``position`` counts the samples that all ranks have seen. Each epoch is a permutation of its
    own. ``drawn``: what this rank requested last, in the step in progress.
    """

    def __init__(self, seed: int, rank: int, world_size: int, *, is_shared: bool = False) -> None:
        """``is_shared``: several ranks read the same share, so a rank may leave its reading to another one."""
        self.position = 0
        self._num_samples = 0
        self.drawn: list[int] = []
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._is_shared = is_shared
        self._taken = 0
        self._step_taken = 0
        self._is_in_step = False
        self._skipped: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Begin a step: samples that were requested before it, such as to warm up, are not counted."""
        self._taken, self._is_in_step, self.drawn = 0, True, []
        while (beyond := max((end for first, end in self._skipped if first <= self.position < end), default=-1)) >= 0:
            self.position = beyond  # it may be in a range that was found earlier

    def skip(self, first: int, end: int) -> None:
        """Leave out the samples from ``first`` to before ``end``, counted over all ranks, when their turn comes."""
        if first < end:
            self._skipped.append((first, end))

    @property
    def epochs(self) -> float | None:
        """Epochs that all ranks have seen, with the part of the one in progress; None: no samples were requested."""
        return self.position / self._num_samples if self._num_samples else None

    def share_of(self, global_batch: int) -> int:
        """Return this rank's share of a batch. Raises ``ValueError``, with possible batches, if the ranks cannot share
        it evenly.
        """
        ranks = self._world_size
        if global_batch < 1 or global_batch % ranks:
            below = max(global_batch // ranks * ranks, 0)
            batches = " or ".join(f"{batch:,}" for batch in (below, below + ranks) if batch)
            raise ValueError(
                f"a batch of {global_batch:,} samples is not shared evenly by {ranks:,} ranks: {batches} samples are; "
                "an elastic job needs a batch that the ranks of each of its sizes divide"
            )
        return global_batch // ranks

    def indices(self, num_samples: int, batch_size: int) -> list[int]:
        """Return this rank's share of the global batch that begins at ``position``: shares are contiguous, in rank
        order.

        Raises:
            ValueError: there is nothing to choose from, or this step's samples were requested before.
        """
        if num_samples < 1 or batch_size < 1:
            raise ValueError(f"num_samples {num_samples} and batch_size {batch_size} must be 1 or more")
        if self._taken and self._is_in_step:
            raise ValueError(
                "sample_indices was called twice in one step, and would return the same samples again: request all "
                f"samples of the step at once ({self._taken // self._world_size} + {batch_size}) and split the list, "
                "one piece for each backward pass, or draw from run.samples, which returns new ones at each call"
            )
        ACTIVITY.tick()
        self._num_samples = num_samples
        self._taken = batch_size * self._world_size
        first = self.position + self._rank * batch_size
        self.drawn = [sample_at(number, num_samples, self._seed) for number in range(first, first + batch_size)]
        return list(self.drawn)

    def advance(self) -> int | None:
        """Count the step's global batch as seen, and return this rank's number of samples; None: it requested none."""
        taken, self._taken, self._is_in_step = self._taken, 0, False
        self.position += taken
        self._step_taken = taken // self._world_size
        return self._step_taken or None

    def figures(self) -> list[int]:
        """Return figures of the step that ended, of which all ranks take the highest, for ``agree``."""
        taken = self._step_taken
        return [self.position, taken, NO_SAMPLES if self._is_shared and not taken else -taken]

    def agree(self, highest: Sequence[int], ranks: Agreement) -> None:
        """Take over the position that all ranks have reached together.

        Raises, on every rank:
            ValueError: the ranks requested different numbers of samples, so some samples would be lost and others
                taken twice.
        """
        position, most, minus_fewest = highest
        if most == -minus_fewest or minus_fewest == NO_SAMPLES:
            self.position = position
            return
        counts: dict[int, list[int]] = {}
        for rank, taken in enumerate(ranks.gather(self._step_taken)):
            counts.setdefault(taken, []).append(rank)
        words = "; ".join(f"{taken:,} on {ranks_in_words(counts[taken])}" for taken in sorted(counts))
        raise ValueError(
            "the ranks requested different numbers of samples in one step, so some samples would be lost and others "
            f"taken twice: {words}. Call sample_indices with one batch size on every rank, or give start a data_mesh "
            "that names the ranks that read different samples"
        )


def sample_at(number: int, num_samples: int, seed: int | str) -> int:
    """Return the ``number``-th sample of a training: each epoch holds every sample once, in an order of its own.

    A Feistel network over the smallest power of two that covers the samples is applied until the result is one of them:
    a permutation without a table, so a billion samples cost no more memory than ten.
    """
    epoch, place = divmod(number, num_samples)
    key = hashlib.blake2b(f"{seed} {epoch} {num_samples}".encode(), digest_size=8)
    num_bits = (num_samples - 1).bit_length()
    place = _scrambled(place, num_bits, key)
    while place >= num_samples:
        place = _scrambled(place, num_bits, key)
    return place


def _scrambled(place: int, num_bits: int, key: hashlib.blake2b) -> int:
    left_bits, right_bits = num_bits // 2, num_bits - num_bits // 2
    left, right = place >> right_bits, place & ((1 << right_bits) - 1)
    for turn in range(_ROUNDS):
        mixed = key.copy()
        mixed.update(b"%d %d" % (turn, right))
        left ^= int.from_bytes(mixed.digest(), "little") & ((1 << left_bits) - 1)
        left, right = right, left
        left_bits, right_bits = right_bits, left_bits
    return left << right_bits | right
