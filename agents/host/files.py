"""The kernel's files in any condition: missing, unreadable, malformed, huge, or never ending. None stands for each."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

BYTES_MAX: Final = 64 << 10
ENTRIES_MAX: Final = 512
_MOST_DIGITS: Final = 24


def read_text(path: Path, bytes_max: int = BYTES_MAX) -> str | None:
    """Return the first ``bytes_max`` bytes; a byte that is not ASCII is replaced."""
    try:
        with path.open("rb", buffering=0) as file:
            content = b""
            # Each read of /proc gives a page at most.
            while len(content) < bytes_max and (piece := file.read(bytes_max - len(content))):
                content += piece
            return content.decode("ascii", "replace")
    except (OSError, ValueError):
        return None


def read_number(path: Path) -> float | None:
    """Return a whole number that is alone in its file, such as a counter."""
    return whole(read_text(path, 64))


def read_integer(path: Path) -> int | None:
    """Return the same number exactly: a counter of bytes soon exceeds 2^53."""
    return _integer(read_text(path, 64))


def whole(text: str | None) -> float | None:
    """Return a number as the kernel writes it: digits alone, with a sign at most."""
    found = _integer(text)
    return None if found is None else float(found)


def _integer(text: str | None) -> int | None:
    stripped = (text or "").strip()
    digits = stripped.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _MOST_DIGITS:
        return None
    return int(stripped)


def folders_in(path: Path) -> Iterator[Path]:
    """Yield the folders in the order of their names, links to folders too. None where the path cannot be listed."""
    found: list[Path] = []
    with suppress(OSError):
        for entry in path.iterdir():
            found.append(entry)
            if len(found) >= ENTRIES_MAX:
                break
    for entry in sorted(found):
        with suppress(OSError):
            if entry.is_dir():
                yield entry
