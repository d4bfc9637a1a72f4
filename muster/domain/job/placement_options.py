"""The notation of a job's placement in options and forms: rack=16, pp=2,tp=8, zone=a|b.

Each function raises ``ValueError``, with the word that cannot be read and the accepted form.
"""

from collections.abc import Iterable
from typing import Any, Final

MOST_DIGITS: Final = 15
DEGREES: Final = ("pp", "dp", "fsdp", "tp")


def slices_of(words: Iterable[str]) -> list[dict[str, Any]]:
    """Parse slices, each as LEVEL=RANKS."""
    return [{"level": level, "ranks": ranks} for level, ranks in (_counted(word, "rack=16") for word in words)]


def layout_of(words: str) -> dict[str, int]:
    """Parse a layout, as DEGREE=NUMBER with commas between."""
    degrees: dict[str, int] = {}
    for word in words.split(","):
        name, number = _counted(word.strip(), "tp=8")
        if name not in DEGREES:
            raise ValueError(f"{name!r} is no degree of a layout: pp, dp, fsdp and tp are")
        if name in degrees:
            raise ValueError(f"{name} appears twice")
        degrees[name] = number
    return degrees


def labels_of(words: Iterable[str]) -> dict[str, list[str]]:
    """Parse labels, each as NAME=VALUE[|VALUE]; values of one name add up."""
    found: dict[str, list[str]] = {}
    for word in words:
        name, separator, values = word.partition("=")
        if not separator or not name or not all(values.split("|")):
            raise ValueError(f"{word!r} is not NAME=VALUE or NAME=VALUE|VALUE, such as zone=a")
        found.setdefault(name, []).extend(values.split("|"))
    return found


def _counted(word: str, example: str) -> tuple[str, int]:
    name, separator, number = word.partition("=")
    if not separator or not name or not (number.isascii() and number.isdecimal()):
        raise ValueError(f"{word!r} is not NAME=NUMBER, such as {example}")
    if len(number) > MOST_DIGITS:
        raise ValueError(f"{name}={number[:MOST_DIGITS]}… is no number of at most {MOST_DIGITS} digits")
    return name, int(number)
