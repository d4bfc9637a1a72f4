"""Redaction of known values in a program's output, before it reaches a disk or leaves the host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LEAST_BYTES = 8
"""Length below which values stay: striking every ``1`` or ``yes`` out would hide the log and show the secret."""
STRUCK = b"[secret]"
_PIECE_BYTES = 4 << 10
"""Size of the pieces of longer values, so that a stream need not hold back more than that."""


class Redactor:
    """Redactor of whole values, and of each line of values with several; not of what the program derived from them."""

    def __init__(self, values: Iterable[bytes] = ()) -> None:
        lines = {part.strip() for value in values for part in (value, *value.splitlines())}
        wanted = {line[at : at + _PIECE_BYTES] for line in lines for at in range(0, len(line), _PIECE_BYTES)}
        self._values = sorted((value for value in wanted if len(value) >= LEAST_BYTES), key=len, reverse=True)

    def strike(self, content: bytes) -> bytes:
        for value in self._values:
            content = content.replace(value, STRUCK)
        return content

    def words(self, text: str | None) -> str | None:
        return self.strike(text.encode("utf-8", "replace")).decode("utf-8", "replace") if text else text

    def document(self, found: object) -> object:
        """Return the same JSON, its strings struck."""
        if not self._values:
            return found
        if isinstance(found, str):
            return self.words(found)
        if isinstance(found, dict):
            return {self.words(str(name)): self.document(value) for name, value in found.items()}
        return [self.document(value) for value in found] if isinstance(found, list) else found


class StreamRedactor:
    """Redactor for a stream in pieces: an end that may be the beginning of a value waits for the rest."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._buffered = b""

    def take(self, content: bytes) -> bytes:
        """Return the part that can be passed on by now."""
        content = self._redactor.strike(self._buffered + content)
        cut = len(content) - self._waiting(content)
        self._buffered = content[cut:]
        return content[:cut]

    def rest(self) -> bytes:
        """Return the rest after the end."""
        held, self._buffered = self._buffered, b""
        return held

    def _waiting(self, content: bytes) -> int:
        """Return how many of the last bytes are the beginning of a value."""
        longest = 0
        for value in self._redactor._values:  # noqa: SLF001  # both belong together
            at = content.find(value[:1], max(0, len(content) - len(value) + 1))
            while at >= 0 and not value.startswith(content[at:]):
                at = content.find(value[:1], at + 1)
            longest = max(longest, len(content) - at if at >= 0 else 0)
        return longest
