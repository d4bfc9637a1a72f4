"""Loader workers that outlive a SIGTERM to their rank's whole group, as torchrun sends it, until their rank leaves.

Without this the workers die first, and the rank raises "DataLoader worker exited unexpectedly" instead of saving.
Muster's own supervisor signals ranks alone (``workers.host.supervisor.rank_entry``); this is for every other launcher.
torch gives its workers a handler of its own as they start, so ours takes its place right after that: a forked worker
inherits ours. A worker that is spawned, or forked by a fork server, begins as a new interpreter that imports for
seconds. It starts with SIGTERM blocked, which a new program inherits, and unblocks it after it has the handler.

A child of a fork server inherits from that server, and not from us. So loaders have a fork server of their own, which
has SIGTERM blocked permanently: if it died, its workers would count as dead. Other processes of the program are
children of Python's own fork server, and end on SIGTERM.
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
"""Flag that the rank leaves: then SIGTERM is its own, to workers that did not end before. Forked workers share it."""
_torchs: Any = signal_handling
_of_torch = _torchs._set_worker_signal_handlers  # noqa: SLF001  # there is no public place for it
_loaders: Any = DataLoader
_iterator_of_torch = _loaders._get_iterator  # noqa: SLF001  # as above
_servers: Any = forkserver
_connect_of_python = forkserver.connect_to_new_process
_own_server = forkserver.ForkServer()


class _Starting(threading.local):
    """Kind of process that this thread starts now: workers of a loader, or others."""

    is_loader = False


_starting = _Starting()


def keep_loaders() -> None:
    """Protect the workers of all loaders that start from now on."""
    if _torchs._set_worker_signal_handlers is not _of_torch:  # noqa: SLF001
        return
    _torchs._set_worker_signal_handlers = _set_handlers  # noqa: SLF001
    _loaders._get_iterator = _get_iterator  # noqa: SLF001
    _servers.connect_to_new_process = _connect
    atexit.register(_rank.__setitem__, 0, _LEAVES)


class _Beginning:
    """First action of a worker that is a new interpreter, followed by the program's own ``worker_init_fn``."""

    def __init__(self, init: Callable[[int], object] | None) -> None:
        self._init = init
        self._where_rank_is = f"/proc/{os.getpid()}/fd/{_descriptor}"

    def __call__(self, number: int) -> None:
        global _rank  # noqa: PLW0603  # this process is another one's worker, and has no rank of its own
        with contextlib.suppress(OSError):  # without it the worker ends with its rank, as torch watches for
            descriptor = os.open(self._where_rank_is, os.O_RDONLY | os.O_CLOEXEC)
            _rank = mmap.mmap(descriptor, 1, prot=mmap.PROT_READ)
            os.close(descriptor)
        _heed_sigterm()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self._init is not None:
            self._init(number)


def _get_iterator(loader: Any) -> Any:
    """Return a loader's iterator, in place of the method of torch's loader."""
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
    """Block SIGTERM in this thread; a signal is delivered a moment later, and not lost.

    The start of multiprocessing's resource tracker unblocks SIGTERM, so that is done first.
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
    """Request a process from a fork server, in place of Python's function."""
    if not _starting.is_loader:
        return _connect_of_python(descriptors)
    _own_server.set_forkserver_preload(_servers._forkserver._preload_modules)  # noqa: SLF001  # as the program asked
    return _own_server.connect_to_new_process(descriptors)


def _set_handlers() -> None:
    """Set the handlers in a forked worker, as its first action."""
    _of_torch()
    _heed_sigterm()


def _heed_sigterm() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _heed_own_rank)


def _heed_own_rank(*_: object) -> None:
    if _rank[0] == _LEAVES:
        os._exit(0)
