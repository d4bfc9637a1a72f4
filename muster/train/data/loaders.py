"""Loader workers outlive a SIGTERM to their rank's whole group, as torchrun sends it, until their rank leaves.

Else they die first, and the rank raises "DataLoader worker exited unexpectedly" where it should save. Muster's own
supervisor signals ranks alone (``workers.host.supervisor.rank_entry``); this is for every other launcher. torch gives
its workers a handler of their own as they start, so ours takes its place right after that: a forked worker has ours by
what it inherits. One that is spawned, or comes of a fork server, begins as a new interpreter: it starts with SIGTERM
blocked, which a new program inherits, since it imports for seconds, and unblocks it once it has the handler.

What comes of a fork server inherits from that, and not from us. So loaders have a fork server of their own, which has
SIGTERM blocked for life: were it to die, its workers would count as dead. What else the program starts comes of
Python's own fork server, and may be told to end.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import signal
import threading
from multiprocessing import forkserver, resource_tracker
from typing import TYPE_CHECKING, Any

import torch.multiprocessing
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_STAYS, _LEAVES = 0, 1
_descriptor = os.memfd_create("muster-rank-leaves", os.MFD_CLOEXEC)
os.ftruncate(_descriptor, 1)
_rank = mmap.mmap(_descriptor, 1)
"""Whether the rank leaves. Then SIGTERM is its own, to who did not end when told. Forked workers share it as it is."""
_torchs: Any = signal_handling
_of_torch = _torchs._set_worker_signal_handlers  # noqa: SLF001  # there is no public place for it
_loaders: Any = DataLoader
_iterator_of_torch = _loaders._get_iterator  # noqa: SLF001  # as above
_servers: Any = forkserver
_connect_of_python = forkserver.connect_to_new_process
_own_server = forkserver.ForkServer()


class _Starting(threading.local):
    """What this thread starts now: workers of a loader, or what else there is."""

    is_loader = False


_starting = _Starting()


def keep_loaders() -> None:
    """Of all loaders whose workers start from now on."""
    if _torchs._set_worker_signal_handlers is not _of_torch:  # noqa: SLF001
        return
    _torchs._set_worker_signal_handlers = _set_handlers  # noqa: SLF001
    _loaders._get_iterator = _get_iterator  # noqa: SLF001
    _servers.connect_to_new_process = _connect
    atexit.register(_rank.__setitem__, 0, _LEAVES)


class _Beginning:
    """What a worker that is a new interpreter does first, and then what the program wants of it."""

    def __init__(self, init: Callable[[int], object] | None) -> None:
        self._init = init
        self._where_rank_is = f"/proc/{os.getpid()}/fd/{_descriptor}"

    def __call__(self, number: int) -> None:
        global _rank  # noqa: PLW0603  # this process is another one's worker, and has no rank of its own
        with contextlib.suppress(OSError):  # where it cannot be seen the worker ends with its rank, as torch looks for
            descriptor = os.open(self._where_rank_is, os.O_RDONLY | os.O_CLOEXEC)
            _rank = mmap.mmap(descriptor, 1, prot=mmap.PROT_READ)
            os.close(descriptor)
        _heed_sigterm()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self._init is not None:
            self._init(number)


def _get_iterator(loader: Any) -> Any:
    """In place of the method of torch's loader."""
    if loader.num_workers == 0 or _start_method(loader) == "fork":
        return _iterator_of_torch(loader)
    init = loader.worker_init_fn
    loader.worker_init_fn = _Beginning(init)
    try:
        with _blocked():
            return _iterator_of_torch(loader)
    finally:
        loader.worker_init_fn = init


def _start_method(loader: Any) -> str:
    context = loader.multiprocessing_context or torch.multiprocessing
    return str(context.get_start_method())


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """SIGTERM comes to this thread when it is over: a moment later, and not lost.

    Whoever starts multiprocessing's tracker of resources unblocks it, so that runs first.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _starting.is_loader = True
    try:
        yield
    finally:
        _starting.is_loader = False
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connect(descriptors: list[int]) -> tuple[int, int]:
    """In place of the function of Python's: asks a fork server for a process."""
    if not _starting.is_loader:
        return _connect_of_python(descriptors)
    _own_server.set_forkserver_preload(_servers._forkserver._preload_modules)  # noqa: SLF001  # as the program asked
    return _own_server.connect_to_new_process(descriptors)


def _set_handlers() -> None:
    """In a forked worker, as its first act."""
    _of_torch()
    _heed_sigterm()


def _heed_sigterm() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _heed_own_rank)


def _heed_own_rank(*_: object) -> None:
    if _rank[0] == _LEAVES:
        os._exit(0)
