"""Where ids are born. The pure core never calls this; shells pass the ids in."""

import os
import time
from typing import Final

from muster.domain.ids import PREFIXES

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"


def new_id(noun: str, *, now_ms: int | None = None) -> str:
    """A fresh id of ``noun`` (a key of ``muster.domain.ids.PREFIXES``), sortable by birth."""
    stamp = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    number = (stamp << 80) | int.from_bytes(os.urandom(10))
    return f"{PREFIXES[noun]}_" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))
