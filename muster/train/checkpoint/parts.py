"""A rank's part of the state, as it is to be written: taken while no step changes it, and copied if one is to go on."""

from __future__ import annotations

import contextlib
import pickle
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint import state
from muster.train.checkpoint.save_faults import SaveFault
from muster.train.checkpoint.staging import Staging
from muster.train.parallel.shards import CoverageError
from muster.train.runtime import rng as chance

if TYPE_CHECKING:
    from muster.train.checkpoint.state import Trained

Part = dict[str, Any] | SaveFault | CoverageError
"""A rank's part of the state, or why it has none to write."""


class Parts:
    """One rank's. All ranks ask for the same, behind the same step: a ``state_dict`` may be a matter of all of them."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._staging = Staging()

    def of(self, trained: Trained) -> Part:
        """The tensors are training's own, to be written before it goes on.

        With ``rng_sha256``, taken of the rank itself and not of the part: what is written is held against it.
        """
        rng = chance.random_state()
        sha256 = chance.digest_of(rng)
        try:
            part = state.part_of(trained, rng, rank=self._rank, world_size=self._world_size)
        except CoverageError as fault:
            return fault
        return {**part, "rng_sha256": sha256}

    def copied(self, trained: Trained) -> Part:
        """As ``of``, in memory of its own: training may go on. It holds until the next copy."""
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
        """Begin to make the memory for the first copy, beside training."""
        with contextlib.suppress(CoverageError):  # told by who saves
            self._staging.make_room(state.tensors_of(trained, rank=self._rank, world_size=self._world_size))
