"""A gang's demands on the place of its hosts, in addition to its required and preferred level: plain frozen data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, TypeVar

from muster.domain.residency import SITE_LABEL

Host = TypeVar("Host")

Labels = tuple[tuple[str, str], ...]
"""Labels of a node: names and values, sorted."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Each run of ``nodes`` hosts by rank, counted from the first, is in one domain of ``level``."""

    level: str
    nodes: int


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """The order in which a pipeline's hosts are placed.

    By rank the stages follow each other, each with all replicas; by place the stages of a replica are neighbours, so
    that one domain can hold them. ``hosts``: of one stage of one replica, or of the replicas that share a host.
    """

    stages: int
    hosts: int

    def by_rank(self, placed: Sequence[Host]) -> tuple[Host, ...]:
        """Return by rank the hosts that are given by place: replicas × ``stages`` × ``hosts``."""
        return self._turned(placed, self.stages, len(placed) // (self.stages * self.hosts))

    def by_place(self, ranked: Sequence[Host]) -> tuple[Host, ...]:
        """Return by place the hosts that are given by rank: ``stages`` × replicas × ``hosts``."""
        return self._turned(ranked, len(ranked) // (self.stages * self.hosts), self.stages)

    def _turned(self, given: Sequence[Host], outer: int, inner: int) -> tuple[Host, ...]:
        """Return the hosts with outer and inner exchanged. ``given``: ``inner`` × ``outer`` × ``hosts``."""
        places = product(range(outer), range(inner), range(self.hosts))
        return tuple(given[(middle * outer + first) * self.hosts + last] for first, middle, last in places)


@dataclass(frozen=True, slots=True)
class Preference:
    """Slices that replace the required ones if the gang fits with them.

    ``order``: the order of the hosts; None: they follow each other by rank.
    """

    slices: tuple[Slice, ...]
    order: PipelineOrder | None = None


@dataclass(frozen=True, slots=True)
class LabelRule:
    """A rule on node labels.

    ``required``: the node's value of each name is one of these. ``forbidden``: it is none of these. ``sites``: the
    sites of the tenant's residency rule; None: any. The job itself did not ask for them and cannot leave them out.
    """

    required: tuple[tuple[str, frozenset[str]], ...] = ()
    forbidden: tuple[tuple[str, frozenset[str]], ...] = ()
    sites: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.required or self.forbidden) or self.sites is not None

    @property
    def names(self) -> Sequence[str]:
        """The labels that the job itself asks for, or against."""
        return sorted({name for name, _ in (*self.required, *self.forbidden)})

    @property
    def of_tenant(self) -> "LabelRule":
        """The part by the tenant's residency rule alone."""
        return LabelRule(sites=self.sites)

    @property
    def of_job(self) -> "LabelRule":
        """The part that the job itself asks for."""
        return LabelRule(self.required, self.forbidden)

    def without(self, name: str) -> "LabelRule":
        """Return the rule without this label of the job's own."""
        required = tuple(each for each in self.required if each[0] != name)
        return LabelRule(required, tuple(each for each in self.forbidden if each[0] != name), self.sites)

    def admits(self, labels: Iterable[tuple[str, str]]) -> bool:
        values = dict(labels)
        if self.sites is not None and values.get(SITE_LABEL) not in self.sites:
            return False
        has_all = all(values.get(name) in wanted for name, wanted in self.required)
        return has_all and not any(values.get(name) in barred for name, barred in self.forbidden)


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """The demands of a gang.

    ``slices``: widest level first; each one's hosts are a multiple of the next one's, the gang's of the first one's.
    ``preferred``: preferences, of which the first one with which the gang fits is used. ``balance``: a level over whose
    domains the gang is spread evenly, over the fewest that hold it.
    """

    slices: tuple[Slice, ...] = ()
    preferred: tuple[Preference, ...] = ()
    balance: str | None = None
    labels: LabelRule = field(default_factory=LabelRule)

    @property
    def levels(self) -> Sequence[str]:
        """The levels at which the place of a host has to be known."""
        own = [one.level for one in self.slices]
        return own if self.balance is None else [*own, self.balance]

    @property
    def step(self) -> int:
        """The gang's hosts are a multiple of this number."""
        return self.slices[0].nodes if self.slices else 1


ANYWHERE: Final = PlacementRule()
