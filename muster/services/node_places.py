"""Where a node stands in the fleet's tree, and its labels, as the planner takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.db.models import Node
from muster.domain.ids import NodeId
from scheduler.placement_rule import Labels

RACK: Final = "rack"


@dataclass(frozen=True, slots=True)
class Place:
    """``path``: the domain's name at each level, widest first; an empty one is unknown."""

    path: tuple[str, ...]
    labels: Labels


def places(session: Session, levels: Sequence[str]) -> Mapping[NodeId, Place]:
    """Of each node, one row a node."""
    labels_known: dict[Labels, Labels] = {}
    found = {}
    for node_id, rack, stored in session.execute(select(Node.id, Node.rack, Node.labels)):
        labels = tuple(sorted(stored.items())) if stored else ()
        found[node_id] = Place(path_of(levels, rack, stored), labels_known.setdefault(labels, labels))
    return found


def path_of(levels: Sequence[str], rack: str | None, labels: Mapping[str, str]) -> tuple[str, ...]:
    """The rack is the host's join token's; the domain of any other level is the label of its name."""
    return tuple((rack if level == RACK else labels.get(level)) or "" for level in levels)
