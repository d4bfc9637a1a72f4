"""Loader workers outlive a SIGTERM to their rank's whole group, as torchrun sends it, until their rank leaves.

Else they die first, and the rank raises "DataLoader worker exited unexpectedly" where it should save. Muster's own
supervisor signals ranks alone (``workers.host.supervisor.rank_entry``); this is for every other launcher. torch gives
its workers a handler of their own as they start, so ours takes its place right after that.
"""

from __future__ import annotations

import atexit
import mmap
import os
import signal
import threading
from typing import Any

from torch.utils.data._utils import signal_handling

_STAYS, _LEAVES = 0, 1
_rank = mmap.mmap(-1, 1)
"""Shared with what is forked: whether the rank leaves. Then SIGTERM is its own, to who did not end when told."""
_torchs: Any = signal_handling
_of_torch = _torchs._set_worker_signal_handlers  # noqa: SLF001  # there is no public place for it


def keep_loaders() -> None:
    """Of all loaders whose workers are forked from now on."""
    if _torchs._set_worker_signal_handlers is not _of_torch:  # noqa: SLF001
        return
    _torchs._set_worker_signal_handlers = _set_handlers  # noqa: SLF001
    atexit.register(_rank.__setitem__, 0, _LEAVES)


def _set_handlers() -> None:
    """In a worker, as its first act."""
    _of_torch()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _heed_own_rank)


def _heed_own_rank(*_: object) -> None:
    if _rank[0] == _LEAVES:
        os._exit(0)
