"""Drift: GPUs of one model that differ from most others, in which attribute, and how many are kept out of gangs by it.

Pure. GPUs come in groups with equal attributes, so that a fleet of any size is few rows.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from health.cohort.cohorts import Attribute
from muster.domain.ids import NodeId
from muster.domain.policy.health import CohortPolicy

NODES_NAMED: Final = 100
"""Most nodes that differ and are named; all of them are counted."""


@dataclass(frozen=True, slots=True)
class Alike:
    """``num_gpus`` equal GPUs of one model on one node. An attribute that is None or missing is unknown."""

    model: str
    node_id: NodeId
    num_gpus: int
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Other:
    """GPUs with another value than most. ``nodes``: the first ``NODES_NAMED`` of their nodes, in order."""

    value: str
    num_gpus: int
    num_nodes: int
    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Drift:
    """One attribute of one model in which GPUs differ.

    ``majority``: the value of most GPUs; among equals the one on more nodes, then the first in order. ``num_gpus``,
    ``num_nodes``: all of the model of which the attribute is known. ``is_cohort``: the policy forbids to mix GPUs that
    differ in it. ``num_kept_out``: how many GPUs it therefore keeps out of a gang with the majority. ``mixed_in``: the
    tiers that allow the mix nevertheless.
    """

    model: str
    attribute: str
    majority: str
    num_gpus: int
    num_nodes: int
    others: tuple[Other, ...]
    is_cohort: bool
    mixed_in: tuple[str, ...] = ()

    @property
    def num_differing(self) -> int:
        return sum(other.num_gpus for other in self.others)

    @property
    def num_kept_out(self) -> int:
        return self.num_differing if self.is_cohort else 0


def drifts_of(
    groups: Sequence[Alike], policy: CohortPolicy, requested: Mapping[str, Collection[str] | None] | None = None
) -> list[Drift]:
    """Return every model and attribute with more than one value, first the one that keeps the most GPUs out of gangs.

    ``requested``: tier → the attributes that have to be equal, as ``Policy.homogeneity``; None: there is one rule
    for all.
    """
    by_model: dict[str, list[Alike]] = {}
    for group in groups:
        by_model.setdefault(group.model, []).append(group)
    found = [
        drift
        for model, alike in by_model.items()
        for name in sorted({name for group in alike for name in group.attributes} - {"model"})
        if (drift := _drift(model, name, alike, is_cohort=name in policy.attributes)) is not None
    ]
    found = [replace(drift, mixed_in=_mixed_in(drift, requested or {})) for drift in found]
    return sorted(found, key=lambda each: (-each.num_kept_out, -each.num_differing, each.model, each.attribute))


def _drift(model: str, name: str, groups: Iterable[Alike], *, is_cohort: bool) -> Drift | None:
    gpus: Counter[str] = Counter()
    nodes: dict[str, set[NodeId]] = {}
    for group in groups:
        value = group.attributes.get(name)
        if value is not None:
            gpus[str(value)] += group.num_gpus
            nodes.setdefault(str(value), set()).add(group.node_id)
    if len(gpus) < 2:  # equal, or unknown
        return None
    in_order = sorted(gpus, key=lambda value: (-gpus[value], -len(nodes[value]), value))
    others = tuple(_other(value, gpus[value], nodes[value]) for value in in_order[1:])
    every_node = set().union(*nodes.values())
    return Drift(model, name, in_order[0], gpus.total(), len(every_node), others, is_cohort)


def _mixed_in(drift: Drift, requested: Mapping[str, Collection[str] | None]) -> tuple[str, ...]:
    if not drift.is_cohort:
        return tuple(sorted(requested))
    return tuple(
        sorted(tier for tier, names in requested.items() if names is not None and drift.attribute not in names)
    )


def _other(value: str, num_gpus: int, nodes: set[NodeId]) -> Other:
    return Other(value, num_gpus, len(nodes), tuple(sorted(nodes)[:NODES_NAMED]))
