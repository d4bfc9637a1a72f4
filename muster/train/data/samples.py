"""Samples that a rank sees at a step: a pure function of seed, position and number of ranks. One integer is saved."""

from __future__ import annotations

import hashlib

_ROUNDS = 6


class Samples:
    """Samples of one rank. ``position`` counts the samples that all ranks have seen. Each epoch is a permutation of its
    own.
    """

    def __init__(self, seed: int, rank: int, world_size: int) -> None:
        self.position = 0
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._taken = 0

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
            ValueError: there is nothing to choose from.
        """
        if num_samples < 1 or batch_size < 1:
            raise ValueError(f"num_samples {num_samples} and batch_size {batch_size} must be 1 or more")
        self._taken = batch_size * self._world_size
        first = self.position + self._rank * batch_size
        return [sample_at(number, num_samples, self._seed) for number in range(first, first + batch_size)]

    def advance(self) -> int | None:
        """Count the step's global batch as seen, and return this rank's number of samples; None: it requested none."""
        taken, self._taken = self._taken, 0
        self.position += taken
        return taken // self._world_size or None


def sample_at(number: int, num_samples: int, seed: int) -> int:
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
