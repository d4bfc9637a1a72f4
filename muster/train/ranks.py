"""The ranks of one job and what they agree on, in a private group on the CPU: no collective of the program waits."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")
_PATIENCE = timedelta(minutes=10)


class Ranks:
    """Joins the default group where the program has not, with NCCL where there is a GPU for each rank, else gloo."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._owns_group = False
        self._group: dist.ProcessGroup | None = None
        if world_size > 1:
            if not dist.is_initialized():
                dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
                self._owns_group = True
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def max(self, values: Sequence[int]) -> list[int]:
        """Element by element, the same on every rank."""
        if self._group is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def gather(self, value: T) -> list[T]:
        """Everybody's, on every rank, in rank order."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value, group=self._group)
        return found

    def from_first(self, value: T | None) -> T:
        """Rank 0's value, on every rank."""
        if self._group is None:
            return cast("T", value)
        holder: list[Any] = [value]
        dist.broadcast_object_list(holder, src=0, group=self._group)
        found: T = holder[0]
        return found

    def leave(self) -> None:
        """After the last collective: together, so that no rank takes a group away that another still uses."""
        if not self._owns_group:
            return
        try:
            self.max([0])
        except RuntimeError:  # another rank has died: then there is nothing to wait for
            return
        dist.destroy_process_group()
