"""The current boot of a node, by its reports: only reports of the current boot move latest state (I14)."""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

MAX_PAST_BOOTS: Final = 16


class BootBook(Struct, frozen=True):
    """Known boots. ``order`` counts the accepted boots; ``seq`` and ``newest_ms`` are the newest of the current one."""

    boot_id: str | None = None
    order: int = 0
    seq: int = -1
    newest_ms: int = 0
    past: tuple[str, ...] = ()


def record_boot(
    book: BootBook, boot_id: str, seq: int, at_ms: int, *, known_boot: str | None, past_boots: Collection[str]
) -> BootBook | None:
    """Return the book after one live report, or None for one that is older than the book's newest.

    Heartbeats decide: ``known_boot`` is the boot that they name as current, ``past_boots`` are the boots that it has
    replaced. A boot that no heartbeat has named yet is accepted when its report is of a later time than any of its
    predecessor's.
    """
    if boot_id in past_boots:
        return None
    if boot_id == book.boot_id:
        if seq <= book.seq:
            return None
        return BootBook(boot_id, book.order, seq, max(at_ms, book.newest_ms), book.past)
    is_newer = boot_id == known_boot or (boot_id not in book.past and at_ms > book.newest_ms)
    if not is_newer:
        return None
    past = book.past if book.boot_id is None else (book.boot_id, *book.past)[:MAX_PAST_BOOTS]
    return BootBook(boot_id, book.order + 1, seq, at_ms, tuple(boot for boot in past if boot != boot_id))
