"""Copy of a rank's part, made before training continues, so that it can be written while training changes the state.

The memory is reused for the next copy: touching fresh memory takes longer than copying into it, and pinning it longer
still. For the first copy it is allocated in the background, shortly before it is needed.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint.extra_pieces import tensors_in
from muster.train.runtime.background import BackgroundTask

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_THREADS = 4
"""More threads do not copy faster, because the memory is the limit by then."""
_WORTH_THREADS_BYTES = 16 << 20


class Staging:
    """Copies of one rank's part. There is one at a time: ``copied`` overwrites the one before."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], torch.Tensor] = {}
        self._making: BackgroundTask[dict[tuple[object, ...], torch.Tensor]] | None = None

    def make_room(self, part: dict[str, Any]) -> None:
        """Begin to allocate memory for a copy of ``part``, in a thread. The part that is copied next may differ from
        it.
        """
        self._making = BackgroundTask(partial(_room_for, part), "checkpoint-room")
        atexit.register(self._making.wait)  # the interpreter may not end under a thread of torch's

    def copied(self, part: dict[str, Any]) -> dict[str, Any]:
        """Return the same values in host memory; tensors that share their values in ``part`` share them here.

        Raises:
            RuntimeError, MemoryError: there is no memory for it, or a tensor cannot be copied.
            TypeError, AttributeError, PicklingError: something else cannot be copied.
        """
        making, self._making = self._making, None
        if making is not None:
            atexit.unregister(making.wait)
            with contextlib.suppress(RuntimeError, MemoryError):  # the copy meets it again and reports it
                self._kept = making.result()
        pass_over = _Pass(self._kept)
        staged: dict[str, Any] = pass_over.of(part, ())
        pass_over.end()
        self._kept = pass_over.used
        return staged


def _room_for(part: dict[str, Any]) -> dict[tuple[object, ...], torch.Tensor]:
    """Return, by place, touched memory for each tensor that is copied into reused memory."""
    room = _Pass({})
    plain = [(place, value) for place, value in tensors_in(part) if is_plain(value)]
    gpu = next((value.device for _, value in plain if value.is_cuda), None)
    with contextlib.nullcontext() if gpu is None else torch.cuda.device(gpu):  # memory is pinned for the thread's GPU
        for place, value in plain:
            room.room_for(value, place)
        for made in room.used.values():
            made.zero_()
    return room.used


class _Pass:
    def __init__(self, kept: dict[tuple[object, ...], torch.Tensor]) -> None:
        self._kept = kept
        self.used: dict[tuple[object, ...], torch.Tensor] = {}
        self._shared: dict[tuple[object, ...], torch.Tensor] = {}
        self._devices: set[torch.device] = set()
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def of(self, value: Any, place: tuple[object, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            return self._copied(value, place) if is_plain(value) else value.detach().clone().cpu()
        if isinstance(value, dict):
            return {key: self.of(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)) and any(isinstance(inner, _HOLDERS) for inner in value):
            made = [self.of(inner, (*place, index)) for index, inner in enumerate(value)]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        return copy.deepcopy(value)

    def room_for(self, value: torch.Tensor, place: tuple[object, ...]) -> torch.Tensor:
        """Return memory to copy a tensor into, without the copy. ``used`` has the place, unless an earlier one shares
        its values.
        """
        layout = (value.dtype, value.shape, value.stride(), value.is_conj(), value.is_neg())
        same = (value.device, value.data_ptr(), *layout)
        if value.numel() and same in self._shared:
            return self._shared[same]
        made = self._kept.get(place)
        if made is None or (made.shape, made.dtype, made.stride()) != (value.shape, value.dtype, value.stride()):
            made = torch.empty_like(value, device="cpu", requires_grad=False, pin_memory=value.is_cuda)
        self.used[place] = self._shared[same] = made
        return made

    def _copied(self, value: torch.Tensor, place: tuple[object, ...]) -> torch.Tensor:
        made = self.room_for(value, place)
        if place not in self.used:
            return made
        if value.is_cuda:
            self._devices.add(value.device)
            _copy([(made, value)])
        else:
            self._copies.append((made, value))
        return made

    def end(self) -> None:
        """Copy the tensors on the CPU, large ones by several threads, since torch releases the interpreter for it.

        Then wait for the copies of GPUs, each on its own stream, whichever GPU is the current one.
        """
        threads = _num_threads() if sum(made.nbytes for made, _ in self._copies) > _WORTH_THREADS_BYTES else 1
        if threads == 1:
            _copy(self._copies)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(_copy, [self._copies[first::threads] for first in range(threads)]))
        for device in self._devices:
            torch.cuda.current_stream(device).synchronize()


def _copy(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    with torch.no_grad():
        for made, value in pairs:
            made.copy_(value, non_blocking=value.is_cuda)


def _num_threads() -> int:
    """Return this rank's share of the cores that the process may use."""
    num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or "1")
    return max(1, min(_MOST_THREADS, len(os.sched_getaffinity(0)) // max(num_ranks, 1)))


_HOLDERS = (torch.Tensor, dict, list, tuple)


def is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor is its storage and nothing else.

    Subclasses, sparse, nested and quantized tensors are cloned whole.
    """
    is_strided = value.layout is torch.strided and not value.is_nested and not value.is_quantized
    is_ours = type(value) in {torch.Tensor, torch.nn.Parameter}
    return is_strided and is_ours and (value.numel() == 0 or value.data_ptr() != 0)
