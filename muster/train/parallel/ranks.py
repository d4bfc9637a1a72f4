"""The ranks of one job and their agreements, in a private group on the CPU: no collective of the program waits."""

from __future__ import annotations

import contextlib
import gc
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
import torch.distributed as dist

from muster.train.parallel import meshes
from muster.train.report.waits import ignored
from muster.train.watch.activity import ACTIVITY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

T = TypeVar("T")


class Agreement:
    """Operations of all ranks together over one group of their own; the group is None if there is one rank."""

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup | None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._group = group

    def max(self, values: Sequence[int]) -> list[int]:
        """Return the highest value, element by element, the same on every rank."""
        if self._group is None:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        with self._counted("max"):
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def max_of(self, *groups: Sequence[int]) -> Iterator[list[int]]:
        """Yield the highest values of several groups, which are compared in one message."""
        highest = self.max([value for group in groups for value in group])
        begins = 0
        for group in groups:
            yield highest[begins : begins + len(group)]
            begins += len(group)

    def gather(self, value: T) -> list[T]:
        """Return all ranks' values on every rank, in rank order."""
        if self._group is None:
            return [value]
        found: list[Any] = [None] * self.world_size
        with self._counted("gather"):
            dist.all_gather_object(found, value, group=self._group)
        return found

    def from_first(self, value: T | None) -> T:
        """Return rank 0's value on every rank."""
        if self._group is None:
            return cast("T", value)
        holder: list[Any] = [value]
        with self._counted("from_first"):
            dist.broadcast_object_list(holder, src=0, group=self._group)
        found: T = holder[0]
        return found

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Copy the values of rank ``source`` into all ranks' tensors. As with ``send``: contiguous, in host memory, of
        any kind.
        """
        if self._group is not None:
            with self._counted("broadcast"):
                dist.broadcast(_as_bytes(tensor), src=source, group=self._group)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor's values to one rank, which must ``receive`` as many; return when that rank has taken them."""
        dist.send(_as_bytes(tensor), dst=to, group=self._group)

    def receive(self, tensor: torch.Tensor, source: int) -> None:
        """Receive a rank's values into ``tensor``."""
        dist.recv(_as_bytes(tensor), src=source, group=self._group)

    def pass_on(self, content: torch.Tensor, to: int, source: int) -> torch.Tensor:
        """Send bytes to one rank and return the bytes that ``source`` sends. All ranks of a circle call it together."""
        size, length = torch.tensor([content.numel()]), torch.zeros(1, dtype=torch.int64)
        with self._counted("pass_on"):
            self._swap(size, to, length, source)
            received = torch.empty(int(length), dtype=torch.uint8)
            self._swap(content, to, received, source)
        return received

    def _swap(self, sent: torch.Tensor, to: int, received: torch.Tensor, source: int) -> None:
        sending = dist.isend(_as_bytes(sent), dst=to, group=self._group)
        dist.recv(_as_bytes(received), src=source, group=self._group)
        if sending is not None:
            sending.wait()

    def _counted(self, kind: str) -> AbstractContextManager[None]:  # noqa: ARG002  # the ranks of a program use it
        """Count an agreement that this rank enters, where it concerns the rank's progress."""
        return ignored()

    def end(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            dist.destroy_process_group(group)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as bytes, since gloo does not support every kind of number."""
    return tensor.reshape(-1).view(torch.uint8)


class Ranks(Agreement):
    """Ranks of the job. It joins the default group if the program has not.

    ``background``: a second agreement, for a background thread of each rank. ``is_launched``: there is a group to join,
    even of one rank. ``patience_s``: how long one rank may delay the others at a step or a save before they give up.
    """

    def __init__(self, rank: int, world_size: int, *, is_launched: bool, has_gpu: bool, patience_s: float) -> None:
        if is_launched or world_size > 1:
            meshes.join(has_gpu=has_gpu)
        own, beside = None, None
        if world_size > 1:
            own, beside = (dist.new_group(backend="gloo", timeout=timedelta(seconds=patience_s)) for _ in range(2))
        super().__init__(rank, world_size, own)
        self.background = Agreement(rank, world_size, beside)

    def _counted(self, kind: str) -> AbstractContextManager[None]:
        return ACTIVITY.agreeing(kind)

    def leave(self) -> None:
        """Leave after the last collective, together, so that no rank removes a group that another still uses.

        The groups end here with their threads, not at exit: if one of their threads releases the last reference to a
        tensor while the interpreter shuts down, the process aborts ("terminate called without an active exception").
        """
        if self._group is not None:
            with contextlib.suppress(RuntimeError):  # another rank has died: then there is no rank to wait for
                self.max([0])
            self.background.end()
            self.end()
        meshes.leave()  # of one rank too: NCCL warns of a group that nothing destroyed
        gc.collect()
