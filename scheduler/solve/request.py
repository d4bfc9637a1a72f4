"""The request of a gang, which is equal for all gangs that ask for the same."""

from dataclasses import dataclass, field, replace

from muster.domain.ids import NodeId
from scheduler.model import WaitingJob
from scheduler.solve.placement_rule import ANYWHERE, LabelRule, PlacementRule, Preference

Family = tuple[str, int, str | None, frozenset[NodeId], PlacementRule, int | None, bool]
"""What requests of one family have in common (``Request.family``)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One class of request: jobs with equal requests fit or fail together.

    ``min_nodes``: of an elastic one, which takes fewer than ``nodes`` if so many do not fit. ``expected_s``: its
    expected run time, which weighs the health of places and does not decide whether one is found.
    ``maintenance_start_ms``: the request does not use nodes that close then or before, since it would still run
    (``FleetState.last_closing_ms``). ``bundle_holders``: nodes that are taken before others that are equal in all else.
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
    maintenance_start_ms: int | None = None
    may_use_spares: bool = False
    expected_s: float | None = field(default=None, compare=False)
    bundle_holders: frozenset[NodeId] = field(default=frozenset(), compare=False)

    @property
    def family(self) -> "Family":
        """All by which places differ, except for the number of hosts and the order in which places are preferred.

        Of one family more hosts never fit where fewer do not.
        """
        return (
            self.tier,
            self.gpus_per_node,
            self.required,
            self.avoid_nodes,
            self.rule,
            self.maintenance_start_ms,
            self.may_use_spares,
        )

    @property
    def is_filtered(self) -> bool:
        """Whether it excludes hosts that other requests may use."""
        return bool(self.avoid_nodes or self.rule.labels)

    def unfiltered(self) -> "Request":
        """Return the request on any host. Where it does not fit, the filtered one does not either."""
        return replace(self, avoid_nodes=frozenset(), rule=replace(self.rule, labels=LabelRule()))

    @property
    def fewest_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else self.min_nodes

    def sized(self, nodes: int) -> "Request":
        return self if nodes == self.nodes else replace(self, nodes=nodes)

    def at_least(self) -> "Request":
        """Return the request for its fewest nodes."""
        return self.sized(self.fewest_nodes)

    def avoiding(self, nodes: frozenset[NodeId]) -> "Request":
        return replace(self, avoid_nodes=nodes)

    def unsliced(self) -> "Request":
        return replace(self, rule=replace(self.rule, slices=()))

    def with_preferences(self, preference: Preference) -> "Request":
        """Return the request with the preferred slices as required ones."""
        return replace(self, rule=replace(self.rule, slices=preference.slices, preferred=()))


def request_of(job: WaitingJob, *, is_reclaimable: bool = False, maintenance_start_ms: int | None = None) -> Request:
    """Return the job's request. A small job of a reclaimable tier prefers weak GPUs: a fault costs least there."""
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
        maintenance_start_ms=maintenance_start_ms,
        expected_s=job.expected_s,
        bundle_holders=job.bundle_holders,
    )
