"""The source of ids. The pure core never calls this; shells pass the ids in."""

import os
import time
from functools import lru_cache
from typing import Final

from muster.domain.ids import PREFIXES

_ALPHABET: Final = b"0123456789abcdefghjkmnpqrstvwxyz"
_LETTER_OF: Final = _ALPHABET * 8
"""Byte → letter: each of the 32 for as many bytes, so that five bits of a byte's chance are a letter's."""
_STAMP_LETTERS: Final = 10
_RANDOM_LETTERS: Final = 16
_CHANCES_AT_ONCE: Final = 256
_spare: Final[list[str]] = []
os.register_at_fork(after_in_child=_spare.clear)


def new_id(noun: str, *, now_ms: int | None = None) -> str:
    """Return a new id of ``noun`` (a key of ``muster.domain.ids.PREFIXES``), sortable by time of creation."""
    return f"{PREFIXES[noun]}_{_stamp(time.time_ns() // 1_000_000 if now_ms is None else now_ms)}{_random_letters()}"


@lru_cache(maxsize=8)
def _stamp(moment_ms: int) -> str:
    """48 bits; many ids are born in one millisecond."""
    shifts = range(5 * (_STAMP_LETTERS - 1), -1, -5)
    return bytes(_ALPHABET[(moment_ms >> shift) & 31] for shift in shifts).decode()


def _random_letters() -> str:
    """80 bits, asked of the system for many ids at once: each request has one, and asking costs more than the rest."""
    try:
        return _spare.pop()
    except IndexError:
        drawn = os.urandom(_RANDOM_LETTERS * _CHANCES_AT_ONCE).translate(_LETTER_OF).decode()
        _spare.extend(drawn[at : at + _RANDOM_LETTERS] for at in range(_RANDOM_LETTERS, len(drawn), _RANDOM_LETTERS))
        return drawn[:_RANDOM_LETTERS]
