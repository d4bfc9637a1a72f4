"""What differs between two policies, field by field, for whoever is about to make one of them active."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from muster.domain.policy import Policy


@dataclass(frozen=True, slots=True)
class Difference:
    """``path``: a JSON pointer. ``before`` and ``after``: None where that policy has nothing there, or null."""

    path: str
    before: Any
    after: Any


def differences(before: Policy, after: Policy) -> tuple[Difference, ...]:
    """In the order of the paths. A list is one value; what only one of the two has is told whole."""
    return tuple(_between("", before.model_dump(mode="json"), after.model_dump(mode="json")))


def _between(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield Difference(path, before, after)
        return
    for name in sorted(before.keys() | after.keys()):
        yield from _between(f"{path}/{_escaped(name)}", before.get(name), after.get(name))


def _escaped(name: str) -> str:
    """As RFC 6901 writes a name within a pointer."""
    return name.replace("~", "~0").replace("/", "~1")
