"""What receivers answer, as it is stored: printable, short, and without what is secret in their address."""

from typing import Final

MOST_LETTERS: Final = 300
_SHORTEST_SECRET: Final = 6
"""Shorter parts of a path are words, and no secrets."""


def printable(text: str) -> str:
    """Return the text in one line of printable characters, bounded."""
    whole = " ".join(text.split())
    return "".join(letter for letter in whole if letter.isprintable())[:MOST_LETTERS]


def without(text: str, path: str, secret: str) -> str:
    """Return the text without the path of an address, its parts, and a secret: receivers repeat them in errors."""
    parts = [path, *path.replace("?", "/").replace("&", "/").replace("=", "/").split("/"), secret]
    for part in sorted({part for part in parts if len(part) >= _SHORTEST_SECRET}, key=len, reverse=True):
        text = text.replace(part, "…")
    return text
