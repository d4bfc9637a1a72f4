"""The ranks of one job and what they agree on, in a private group on the CPU: no collective of the program waits."""

from __future__ import annotations

import contextlib
import gc
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Ranks:
    """Joins the default group where the program has not: NCCL for tensors on GPUs, gloo for those on the CPU.

    ``is_launched``: there is a group to join, be it of one. ``patience_s``: how long one rank may keep the others
    waiting at a step or a save before they give up.
    """

    def __init__(self, rank: int, world_size: int, *, is_launched: bool, has_gpu: bool, patience_s: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self._owns_group = (is_launched or world_size > 1) and not dist.is_initialized()
        self._group: dist.ProcessGroup | None = None
        if self._owns_group:
            dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
        if world_size > 1:
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=patience_s))

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
        """After the last collective: together, so that no rank takes a group away that another still uses.

        The groups end here with their threads, not at exit: a thread of theirs that lets go of the last reference to
        a tensor while the interpreter shuts down aborts the process ("terminate called without an active exception").
        """
        group, self._group = self._group, None
        if group is None:
            return
        with contextlib.suppress(RuntimeError):  # another rank has died: then there is nobody to wait for
            dist.all_reduce(torch.zeros(1), group=group)
        dist.destroy_process_group(group)
        del group
        if self._owns_group:
            dist.destroy_process_group()
        gc.collect()
