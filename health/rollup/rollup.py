"""The health of a group of GPUs as a few figures, from the counts of GPUs that are alike. Pure.

Every figure is computed from whole numbers and rounded down, so that a group with one bad GPU never shows a full score,
and the same GPUs give the same figures everywhere.

The score of a group
--------------------
The score of a group is the mean, over its GPUs, of the least counted score among the group's GPUs on the same node.

- Of a node it is the minimum. A gang uses whole nodes and runs as fast as its slowest rank: seven good GPUs do not make
  up for the eighth, and their mean (87.5) would rank such a node above one with eight slightly worn GPUs.
- Of a larger group it is the share of its GPUs that are on sound nodes, where it matters how sound they are. A minimum
  would be 0 in every fleet of some thousand GPUs at all times, and so hide the scale of a fault. A mean over GPUs would
  show the same 87.5 for one dead node of eight, and for eight nodes with a dead GPU each, on which no whole-node gang
  can start at all. This score shows 87.5 for the first and 0 for the second; ``mean`` next to it shows 87.5 for both,
  and so how much is left for jobs of single GPUs.

The counted score of a GPU is its score, or 0 while it does no work for its health: UNPROVEN, QUARANTINED, in REPAIR, or
on a node without contact. A quarantined GPU's own score rises again by time alone, and would raise its group's. A GPU
that has no score yet counts in full, as the score of a GPU without evidence is.

What a group can give is counted apart (``num_healthy``, ``uses``): a cordon or a burn-in takes capacity and no health.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from health.standing.admission import AdmissionFacts, refusal_of
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.ids import NodeId
from muster.domain.policy.tiers import TierPolicy
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Contact, Standing

FULL: Final = 100
IDLE_STANDINGS: Final = (*OUT_OF_SERVICE, Standing.UNPROVEN)
"""Standings in which a GPU does no work for its health."""


class Use(StrEnum):
    """The use of a GPU's capacity; exactly one. A GPU that a job has is IN_USE, whatever its health.

    RESERVED: free, and held for one job. OUT: not in use, and no tier admits it.
    """

    IN_USE = "in_use"
    RESERVED = "reserved"
    FREE = "free"
    OUT = "out"


class GpuKind(NamedTuple):
    """All that a roll-up asks of one GPU. ``counted``: its counted score. ``is_healthy``: every tier admits it.

    ``is_admitted``: at least one tier admits it. That it is in use is no reason against it.
    """

    counted: int
    standing: Standing
    use: Use
    is_healthy: bool
    is_admitted: bool


class Alike(NamedTuple):
    """So many GPUs of one kind on one node."""

    node_id: NodeId
    kind: GpuKind
    num_gpus: int


@dataclass(frozen=True, slots=True)
class Rollup:
    """The figures of one group. All its fields are sums: ``merged`` adds groups without a common node.

    ``counted``: GPUs by counted score. ``points``: the least counted score of each node by its number of GPUs, summed.
    """

    num_nodes: int
    points: int
    num_healthy: int
    num_admitted: int
    counted: Mapping[int, int]
    standings: Mapping[Standing, int]
    uses: Mapping[Use, int]

    @property
    def num_gpus(self) -> int:
        return sum(self.counted.values())

    @property
    def score_tenths(self) -> int:
        """The group's score in tenths of a point, rounded down."""
        return 10 * self.points // self.num_gpus

    @property
    def mean_tenths(self) -> int:
        """The mean of the counted scores in tenths of a point, rounded down."""
        return 10 * sum(value * count for value, count in self.counted.items()) // self.num_gpus

    @property
    def worst(self) -> int:
        return min(self.counted)

    @property
    def p10(self) -> int:
        """The counted score that at least a tenth of the GPUs do not exceed."""
        rank, seen = -(-self.num_gpus // 10), 0
        for value in sorted(self.counted):
            seen += self.counted[value]
            if seen >= rank:
                return value
        raise AssertionError("the rank is within the group")


def kind_of(facts: AdmissionFacts, score: int | None, tiers: Collection[TierPolicy], *, has_hold: bool) -> GpuKind:
    """Return the kind of a GPU that is not retired. ``has_hold``: it is held for one job."""
    if facts.standing is Standing.RETIRED:
        raise ValueError("a retired GPU is in no group")
    standing = effective_standing(facts.standing, facts.override)
    if_free = replace(facts, is_assigned=False)
    admitting = sum(refusal_of(if_free, tier) is None for tier in tiers)
    is_idle = standing in IDLE_STANDINGS or facts.contact is not Contact.LIVE
    if facts.is_assigned:
        use = Use.IN_USE
    elif not admitting:
        use = Use.OUT
    else:
        use = Use.RESERVED if has_hold else Use.FREE
    counted = 0 if is_idle else FULL if score is None else score
    return GpuKind(counted, standing, use, 0 < admitting == len(tiers), admitting > 0)


def rollup_of(group: Iterable[Alike]) -> Rollup:
    """Return the roll-up of a group. Raises ValueError: nothing is in it, so it has no score."""
    counted, standings, uses = Counter[int](), Counter[Standing](), Counter[Use]()
    least, sizes = dict[NodeId, int](), Counter[NodeId]()
    num_healthy = num_admitted = 0
    for node_id, kind, num_gpus in group:
        counted[kind.counted] += num_gpus
        standings[kind.standing] += num_gpus
        uses[kind.use] += num_gpus
        num_healthy += num_gpus * kind.is_healthy
        num_admitted += num_gpus * kind.is_admitted
        least[node_id] = min(least.get(node_id, kind.counted), kind.counted)
        sizes[node_id] += num_gpus
    if not counted:
        raise ValueError("a group without a GPU has no score")
    points = sum(least[node_id] * num_gpus for node_id, num_gpus in sizes.items())
    return Rollup(len(sizes), points, num_healthy, num_admitted, counted, standings, uses)


def rollups_by(fleet: Iterable[tuple[str | None, Alike]]) -> dict[str, Rollup]:
    """Return the roll-up of each group. ``fleet``: GPUs, each with the key of its group; None: they are in none."""
    groups = defaultdict[str, list[Alike]](list)
    for key, alike in fleet:
        if key is not None:
            groups[key].append(alike)
    return {key: rollup_of(group) for key, group in groups.items()}


def merged(first: Rollup, second: Rollup) -> Rollup:
    """Return the roll-up of both groups together. They have no node in common: else ``rollup_of`` their GPUs."""
    return Rollup(
        first.num_nodes + second.num_nodes,
        first.points + second.points,
        first.num_healthy + second.num_healthy,
        first.num_admitted + second.num_admitted,
        Counter(first.counted) + Counter(second.counted),
        Counter(first.standings) + Counter(second.standings),
        Counter(first.uses) + Counter(second.uses),
    )
