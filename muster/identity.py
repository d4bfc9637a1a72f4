"""Where ids are born. The pure core never calls this; shells pass the ids in."""

import os
import time
from typing import Final

from muster.domain.ids import PREFIXES

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
"""Ten bits at a time: half as many steps as by letters."""
_CHANCE_BYTES: Final = 10
_CHANCES_AT_ONCE: Final = 256
_spare: Final[list[bytes]] = []
os.register_at_fork(after_in_child=_spare.clear)


def new_id(noun: str, *, now_ms: int | None = None) -> str:
    """A fresh id of ``noun`` (a key of ``muster.domain.ids.PREFIXES``), sortable by birth."""
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    number = (stamp << 80) | int.from_bytes(_chance())
    return f"{PREFIXES[noun]}_" + "".join([_PAIRS[(number >> shift) & 1023] for shift in range(120, -1, -10)])


def _chance() -> bytes:
    """Asked of the system for many ids at once: each request has one, and asking costs more than the rest of it."""
    try:
        return _spare.pop()
    except IndexError:
        drawn = os.urandom(_CHANCE_BYTES * _CHANCES_AT_ONCE)
        _spare.extend(drawn[at : at + _CHANCE_BYTES] for at in range(_CHANCE_BYTES, len(drawn), _CHANCE_BYTES))
        return drawn[:_CHANCE_BYTES]
