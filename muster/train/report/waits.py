"""The time for which this rank waits in collectives, seen without calls in the program.

Blocking waits are at few places: ``Work.wait``, through which every collective and send of ``torch.distributed`` goes
over gloo; ``wait_tensor`` of the functional collectives, which tensor parallelism and ``DTensor`` use; the calls of a
process group, which over NCCL wait themselves; and two of FSDP2, which waits for its own streams. These are wrapped:
a mark of the device is taken before and after. On the CPU that is the clock. On a GPU these are events in the
program's stream, which the GPU passes later: nothing waits for them.

| measured | by |
|---|---|
| DDP | the part ``collective`` of ``pace``, since torch's reducer waits in C++ |
| FSDP2, tensor parallelism, pipelines, the program's own calls | here |
| collectives that a compiled graph or autograd's C++ waits for | not at all: they count as compute |
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from muster.train.runtime.devices import Device

MOST_SPANS: Final = 4096
"""Of one step: a program with more waits than these is not measured."""
_CALLS: Final = (
    *("allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base"),
    *("allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base"),
    *("reduce_scatter_tensor_coalesced", "alltoall", "alltoall_base", "barrier", "send", "recv"),
)
_FSDP_CALLS: Final = ("wait_for_unshard", "_wait_for_post_backward")
_local = threading.local()
"""Of each thread: ``is_waiting`` within a measured wait, ``is_ignored`` where its waits do not count."""

Span = tuple[Any, Any]
"""Marks before and after a wait."""


class Waits:
    """The waits of this process, which is one rank. Only the stream and the thread of the steps count, and the threads
    of autograd, which run a backward pass. Another thread of the program delays no step by its own waits.

    ``is_covered``: a part of the step is measured as a wait already, so the waits within it do not count again.
    """

    def __init__(self) -> None:
        self.is_covered = False
        self._device: Device | None = None
        self._stream = 0
        self._thread = 0
        self._spans: list[Span] = []
        self._num_dropped = 0
        self._wrapped: set[tuple[Any, str]] = set()

    def watch(self, device: Device) -> None:
        """Measure waits on ``device`` from now on, until ``leave``."""
        self._install()
        self._device = device
        self._thread, self.is_covered = threading.get_ident(), False
        self.take()

    def leave(self) -> None:
        """Measure no more. The wrappers stay, and pass each call on."""
        self._device = None

    def enter_step(self) -> list[Span] | None:
        """Note the thread and the stream in which the program computes. Return the waits since the last call."""
        if self._device is not None:
            self._thread, self._stream = threading.get_ident(), self._device.stream()
        return self.take()

    def take(self) -> list[Span] | None:
        """Return the waits since the last call; None if there were too many."""
        spans, self._spans = self._spans, []
        dropped, self._num_dropped = self._num_dropped, 0
        return None if dropped else spans

    def measured(self, call: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call ``call`` and measure how long the rank waits in it."""
        device = self._device
        if device is None or self.is_covered or not self._is_counted() or device.stream() != self._stream:
            return call(*arguments, **named)
        _local.is_waiting = True
        began = device.mark()
        try:
            return call(*arguments, **named)
        finally:
            _local.is_waiting = False
            if len(self._spans) < MOST_SPANS:
                self._spans.append((began, device.mark()))
            else:
                self._num_dropped += 1

    def _is_counted(self) -> bool:
        """Return whether a wait of this thread counts now."""
        if getattr(_local, "is_waiting", False) or getattr(_local, "is_ignored", False):
            return False
        thread = threading.get_ident()
        return thread == self._thread or not _is_of_python(thread)

    def _install(self) -> None:
        """Wrap the places where a rank waits, each once in a process.

        Another version of torch may lack some of them. A place whose module is imported later is wrapped at the next
        ``watch``.
        """
        if not torch.distributed.is_available():
            return
        c10d: Any = torch.distributed.distributed_c10d
        self._wrap(c10d.Work, "wait")
        for name in _CALLS:
            self._wrap(c10d.ProcessGroup, name)
        self._wrap(sys.modules.get("torch.distributed._functional_collectives"), "wait_tensor")
        groups: Any = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_param_group")
        for name in _FSDP_CALLS:
            self._wrap(getattr(groups, "FSDPParamGroup", None), name)

    def _wrap(self, owner: Any, name: str) -> None:
        call = getattr(owner, name, None)
        if call is None or (owner, name) in self._wrapped:
            return
        self._wrapped.add((owner, name))

        @functools.wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():
                return call(*arguments, **named)
            return self.measured(call, arguments, named)

        with contextlib.suppress(AttributeError, TypeError):  # a version of torch whose classes cannot be changed
            setattr(owner, name, timed)


WAITS: Final = Waits()


@contextlib.contextmanager
def ignored() -> Iterator[None]:
    """Leave out the waits of this thread meanwhile: a background thread delays no step. Blocks may be nested."""
    before = getattr(_local, "is_ignored", False)
    _local.is_ignored = True
    try:
        yield
    finally:
        _local.is_ignored = before


def _is_of_python(thread: int) -> bool:
    """Return whether Python started this thread. Threads of autograd are torch's own, and Python may not list them.

    ``threading.current_thread()`` would answer too, but adds an entry for each foreign thread, which stays.
    """
    known = threading._active.get(thread)  # type: ignore[attr-defined]  # noqa: SLF001  # no public way by identity
    return known is not None and not isinstance(known, threading._DummyThread)  # noqa: SLF001
