"""Where a node stands in the fleet's tree, as the planner takes it."""

from collections.abc import Mapping, Sequence
from typing import Final

RACK: Final = "rack"


def path_of(levels: Sequence[str], rack: str | None, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The rack is the host's join token's; the domain of any other level is the label of its name."""
    return tuple((rack if level == RACK else labels.get(level)) or "" for level in levels)
