"""Rails of a host: in a rail-optimised network GPU k of every host hangs by its NIC on the rail switch k of its leaf.

Numbered from 0 without a gap, each of as many GPUs: ``0,1,2,3,4,5,6,7``, or ``0,0,1,1,2,2,3,3`` where two GPUs share a
NIC.
"""

from typing import Final

MOST_SLOTS: Final = 16
"""GPUs of a host whose rails can be declared."""
RAILS_LABEL: Final = "rails"
"""The label by which a host says its own."""
NO_RAILS: Final = "none"


def require_rails(rails: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``rails``, one for each GPU of a host by slot, or none at all.

    Raises:
        ValueError: they are no rails.
    """
    numbers = sorted(set(rails))
    counts = {rails.count(number) for number in numbers}
    if len(rails) > MOST_SLOTS or numbers != list(range(len(numbers))) or len(counts) > 1:
        raise ValueError(
            f"must be a rail for each GPU of a host by slot, {MOST_SLOTS} at most, numbered from 0 without a gap, each "
            "of as many GPUs, such as 0,1,2,3 or 0,0,1,1"
        )
    return rails


def rails_of_label(text: str) -> tuple[int, ...]:
    """Parse a host's label: ``none``, or a rail for each GPU by slot.

    Raises:
        ValueError: it is neither.
    """
    if text == NO_RAILS:
        return ()
    words = text.split(",")
    if not all(word.isascii() and word.isdecimal() and len(word) <= len(str(MOST_SLOTS)) for word in words):
        raise ValueError(f"must be `{NO_RAILS}`, or a rail for each GPU by slot, such as 0,1,2,3")
    return require_rails(tuple(map(int, words)))
