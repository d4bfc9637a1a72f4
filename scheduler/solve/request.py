"""What a gang asks for, as one class with all that ask for the same."""

from dataclasses import dataclass, field, replace

from muster.domain.ids import NodeId
from scheduler.model import WaitingJob
from scheduler.solve.placement_rule import ANYWHERE, PlacementRule, Wish


@dataclass(frozen=True, slots=True)
class Request:
    """One class of request: jobs with equal requests fit or fail together.

    ``min_nodes``: of an elastic one, which takes fewer than ``nodes`` where so many do not fit. ``expected_s``: for how
    long it is believed to run, which weighs the health of places and decides nothing about whether one is found.
    ``closing_ms``: it would still run as nodes close that do so then or before (``FleetState.last_closing_ms``): it
    does not go there.
    """

    tier: str
    nodes: int
    gpus_per_node: int
    required: str | None = None
    preferred: str | None = None
    avoid_nodes: frozenset[NodeId] = frozenset()
    prefers_weak: bool = False
    min_nodes: int | None = None
    rule: PlacementRule = ANYWHERE
    closing_ms: int | None = None
    may_use_spares: bool = False
    expected_s: float | None = field(default=None, compare=False)

    @property
    def fewest_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else self.min_nodes

    def sized(self, nodes: int) -> "Request":
        return self if nodes == self.nodes else replace(self, nodes=nodes)

    def at_least(self) -> "Request":
        """The smallest that would do."""
        return self.sized(self.fewest_nodes)

    def avoiding(self, nodes: frozenset[NodeId]) -> "Request":
        return replace(self, avoid_nodes=nodes)

    def unsliced(self) -> "Request":
        return replace(self, rule=replace(self.rule, slices=()))

    def wishing(self, wish: Wish) -> "Request":
        """With what it wishes for as if it asked for it."""
        return replace(self, rule=replace(self.rule, slices=wish.slices, wished=()))


def request_of(job: WaitingJob, *, is_reclaimable: bool = False, closing_ms: int | None = None) -> Request:
    """A small job of a reclaimable tier prefers weak GPUs: a fault costs least there."""
    return Request(
        tier=job.tier,
        nodes=job.nodes,
        gpus_per_node=job.gpus_per_node,
        required=job.required_level,
        preferred=job.preferred_level,
        avoid_nodes=job.avoid_nodes,
        prefers_weak=is_reclaimable and job.nodes == 1,
        min_nodes=job.min_nodes,
        rule=job.rule,
        closing_ms=closing_ms,
        expected_s=job.expected_s,
    )
