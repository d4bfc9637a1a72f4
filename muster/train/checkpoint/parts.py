"""A rank's part of the state for a save: taken while no step changes it, and copied if training is to continue."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint import replicas, state
from muster.train.checkpoint.save_faults import SaveFault
from muster.train.checkpoint.staging import Staging
from muster.train.parallel.shards import CoverageError
from muster.train.runtime import rng as chance

if TYPE_CHECKING:
    from muster.train.checkpoint.state import Trained

Part = dict[str, Any] | SaveFault | CoverageError
"""A rank's part of the state, or the reason why it has none to write."""


class Parts:
    """Parts of one rank. All ranks call it after the same step, since a ``state_dict`` may need all of them.

    ``num_saved``: the saves of this attempt that were committed, the same on all ranks.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._staging = Staging()
        self.num_saved = 0

    def of(self, trained: Trained) -> Part:
        """Return the part with training's own tensors, which must be written before training continues.

        ``rng_sha256`` in it is taken from the rank itself and not from the part: the written state is compared with it.
        """
        rng = chance.rng_state()
        sha256 = chance.digest_of(rng)
        is_compared = self._world_size > 1 and self.num_saved % replicas.COMPARE_EVERY == 0
        try:
            part = state.part_of(trained, rng, rank=self._rank, world_size=self._world_size, is_compared=is_compared)
        except CoverageError as fault:
            return fault
        return {**part, "rng_sha256": sha256}

    def copied(self, trained: Trained) -> Part:
        """Return the part in memory of its own, so that training may continue. It is valid until the next copy."""
        part = self.of(trained)
        if not isinstance(part, dict):
            return part
        try:
            return self._staging.copied(part)
        except (MemoryError, torch.OutOfMemoryError) as fault:
            return SaveFault.own(self._rank, f"no room for a copy of its part: {fault}")
        except RuntimeError as fault:
            return SaveFault.own(self._rank, f"its part could not be copied: {fault}")
        except (TypeError, AttributeError, pickle.PicklingError) as fault:
            return CoverageError(f"{state.ONLY_PLAIN}: {fault}")

    def make_room(self, trained: Trained) -> None:
        """Begin to allocate the memory for the first copy, in the background."""
        with contextlib.suppress(CoverageError):  # the save reports it
            self._staging.make_room(state.tensors_of(trained, rank=self._rank, world_size=self._world_size))
