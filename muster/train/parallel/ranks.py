"""The ranks of one job and what they agree on, in a private group on the CPU: no collective of the program waits."""

from __future__ import annotations

import contextlib
import gc
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from muster.train.parallel import meshes

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")


class Agreement:
    """What all ranks do together over one group of their own; None where there is one rank."""

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group = group

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

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """The values of rank ``source`` into everybody's. Like ``send``: contiguous, in host memory, of any kind."""
        if self._group is not None:
            dist.broadcast(_as_bytes(tensor), src=source, group=self._group)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Its values to one rank, which must ``receive`` as many; returns when it has taken them."""
        dist.send(_as_bytes(tensor), dst=to, group=self._group)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """What that rank sends, into ``tensor``."""
        dist.recv(_as_bytes(tensor), src=source, group=self._group)

    def end(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            dist.destroy_process_group(group)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory: gloo knows not every kind of number."""
    return tensor.reshape(-1).view(torch.uint8)


class Ranks(Agreement):
    """Joins the default group where the program has not. ``beside``: for a thread of each rank, while training goes on.

    ``is_launched``: there is a group to join, be it of one. ``patience_s``: how long one rank may keep the others
    waiting at a step or a save before they give up.
    """

    def __init__(self, rank: int, world_size: int, *, is_launched: bool, has_gpu: bool, patience_s: float) -> None:
        if is_launched or world_size > 1:
            meshes.join(has_gpu=has_gpu)
        own, beside = None, None
        if world_size > 1:
            own, beside = (dist.new_group(backend="gloo", timeout=timedelta(seconds=patience_s)) for _ in range(2))
        super().__init__(rank, world_size, own)
        self.beside = Agreement(rank, world_size, beside)

    def leave(self) -> None:
        """After the last collective: together, so that no rank takes a group away that another still uses.

        The groups end here with their threads, not at exit: a thread of theirs that lets go of the last reference to
        a tensor while the interpreter shuts down aborts the process ("terminate called without an active exception").
        """
        if self._group is None:
            return
        with contextlib.suppress(RuntimeError):  # another rank has died: then there is nobody to wait for
            self.max([0])
        self.beside.end()
        self.end()
        meshes.leave()
        gc.collect()
