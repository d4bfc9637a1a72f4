"""Which samples a rank sees at a step: a pure function of seed, position and number of ranks. One integer is saved."""

from __future__ import annotations

import torch


class Samples:
    """``position`` counts the samples that all ranks have seen. Each epoch is a permutation of its own."""

    def __init__(self, seed: int, rank: int, world_size: int) -> None:
        self.position = 0
        self._seed = seed
        self._rank = rank
        self._world_size = world_size
        self._taken = 0
        self._epoch: tuple[int, int] = (-1, 0)
        self._order: list[int] = []

    def indices(self, num_samples: int, batch_size: int) -> list[int]:
        """This rank's share of the global batch that begins at ``position``: ranks side by side, in rank order.

        Raises:
            ValueError: there is nothing to choose from.
        """
        if num_samples < 1 or batch_size < 1:
            raise ValueError(f"num_samples {num_samples} and batch_size {batch_size} must be 1 or more")
        self._taken = batch_size * self._world_size
        first = self.position + self._rank * batch_size
        return [self._sample(number, num_samples) for number in range(first, first + batch_size)]

    def advance(self) -> None:
        """The step is done: its global batch has been seen."""
        self.position += self._taken
        self._taken = 0

    def _sample(self, number: int, num_samples: int) -> int:
        epoch = number // num_samples
        if self._epoch != (epoch, num_samples):
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            self._order = torch.randperm(num_samples, generator=generator).tolist()
            self._epoch = (epoch, num_samples)
        return self._order[number % num_samples]
