"""The place of a node in the fleet's topology tree, as the planner uses it."""

from collections.abc import Mapping, Sequence
from typing import Final

RACK: Final = "rack"


def path_of(levels: Sequence[str], rack: str | None, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the domains of the node.

    Its rack is its join token's; at any other level the label of that name counts.
    """
    return tuple((rack if level == RACK else labels.get(level)) or "" for level in levels)
