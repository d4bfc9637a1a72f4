"""Redaction of known values in a program's output, before it reaches a disk or leaves the host."""

from __future__ import annotations

import binascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LEAST_BYTES = 8
"""Length below which values stay: striking every ``1`` or ``yes`` out would hide the log and show the secret."""
STRUCK = b"[secret]"
_PIECE_BYTES = 4 << 10
"""Size of the pieces of longer values, so that a stream need not hold back more than that."""


class Redactor:
    """Redactor of whole values, of each line of values with several, and of both in base64 and hexadecimal digits.

    It knows no other form that the program makes of them. ``withholds_all``: the values are not known any more, and
    nothing that may hold them is passed on.
    """

    def __init__(self, values: Iterable[bytes] = (), *, withholds_all: bool = False) -> None:
        lines = {part for value in values for part in (value, value.strip(), *map(bytes.strip, value.splitlines()))}
        forms = {form for line in lines if len(line) >= LEAST_BYTES for form in _forms(line)}
        wanted = {form[at : at + _PIECE_BYTES] for form in forms for at in range(0, len(form), _PIECE_BYTES)}
        self._values = sorted((value for value in wanted if len(value) >= LEAST_BYTES), key=len, reverse=True)
        self._withholds_all = withholds_all

    def strike(self, content: bytes) -> bytes:
        if self._withholds_all:
            return STRUCK if content else content
        for value in self._values:
            content = content.replace(value, STRUCK)
        return content

    def words(self, text: str | None) -> str | None:
        return self.strike(text.encode("utf-8", "replace")).decode("utf-8", "replace") if text else text

    def document(self, found: object) -> object:
        """Return the same JSON, its strings struck."""
        if not self._values and not self._withholds_all:
            return found
        if isinstance(found, str):
            return self.words(found)
        if isinstance(found, dict):
            return {self.words(str(name)): self.document(value) for name, value in found.items()}
        return [self.document(value) for value in found] if isinstance(found, list) else found


def _forms(value: bytes) -> Iterator[bytes]:
    """Yield a value as it is, in both alphabets of base64 without its padding, and as hexadecimal digits."""
    yield value.strip()
    whole = binascii.b2a_base64(value, newline=False).rstrip(b"=")
    for plain in (whole, whole[: len(value) // 3 * 4]):  # text after a value changes its last letters
        yield from (plain, plain.replace(b"+", b"-").replace(b"/", b"_"))
    digits = binascii.hexlify(value)
    yield from (digits, digits.upper())


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
