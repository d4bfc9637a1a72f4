"""The differences between two policies, field by field, for a person who is about to activate one of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from muster.domain.policy.document import Policy


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between two policies.

    ``path``: a JSON pointer. ``before`` and ``after`` are None where that policy has nothing there, or null.
    """

    path: str
    before: Any
    after: Any


def differences(before: Policy, after: Policy) -> tuple[Difference, ...]:
    """Return the differences in the order of their paths.

    A list is one value. A part that only one of the two policies has is given whole.
    """
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
    """Escape a name for a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
