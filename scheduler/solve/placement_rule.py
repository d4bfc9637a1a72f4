"""What a gang asks of where its hosts stand, beside its required and its preferred level: plain frozen data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final, TypeVar

Host = TypeVar("Host")

Labels = tuple[tuple[str, str], ...]
"""Of a node: names and values, sorted."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Each ``nodes`` hosts that follow each other by rank, counted from the first, stand in one domain of ``level``."""

    level: str
    nodes: int


@dataclass(frozen=True, slots=True)
class PipelineOrder:
    """By rank the pipeline's stages come one after another, each with all replicas; by place a replica's stages stand
    side by side, so that one domain can hold them.

    ``hosts``: of one stage of one replica, or of those replicas that share a host.
    """

    stages: int
    hosts: int

    def by_rank(self, placed: Sequence[Host]) -> tuple[Host, ...]:
        """What is given by place: replicas × ``stages`` × ``hosts``."""
        return self._turned(placed, self.stages, len(placed) // (self.stages * self.hosts))

    def by_place(self, ranked: Sequence[Host]) -> tuple[Host, ...]:
        """What is given by rank: ``stages`` × replicas × ``hosts``."""
        return self._turned(ranked, len(ranked) // (self.stages * self.hosts), self.stages)

    def _turned(self, given: Sequence[Host], outer: int, inner: int) -> tuple[Host, ...]:
        """``given``: ``inner`` × ``outer`` × ``hosts``."""
        places = product(range(outer), range(inner), range(self.hosts))
        return tuple(given[(middle * outer + first) * self.hosts + last] for first, middle, last in places)


@dataclass(frozen=True, slots=True)
class Wish:
    """``slices`` that stand for those that are asked for, where the gang fits with them, of hosts in this ``order``;
    None: of hosts as they follow each other by rank.
    """

    slices: tuple[Slice, ...]
    order: PipelineOrder | None = None


@dataclass(frozen=True, slots=True)
class LabelRule:
    """``required``: of each name the node's value is one of these. ``forbidden``: it is none of these."""

    required: tuple[tuple[str, frozenset[str]], ...] = ()
    forbidden: tuple[tuple[str, frozenset[str]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required or self.forbidden)

    @property
    def names(self) -> Sequence[str]:
        return sorted({name for name, _ in (*self.required, *self.forbidden)})

    def without(self, name: str) -> "LabelRule":
        """Whatever value that label has."""
        required = tuple(each for each in self.required if each[0] != name)
        return LabelRule(required, tuple(each for each in self.forbidden if each[0] != name))

    def admits(self, labels: Iterable[tuple[str, str]]) -> bool:
        values = dict(labels)
        has_all = all(values.get(name) in wanted for name, wanted in self.required)
        return has_all and not any(values.get(name) in barred for name, barred in self.forbidden)


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """``slices``: widest level first; each one's hosts are a multiple of the next one's, the gang's of the first one's.

    ``wished``: the first with which the gang fits. ``balance``: a level over whose domains the gang is spread evenly,
    over the fewest that hold it.
    """

    slices: tuple[Slice, ...] = ()
    wished: tuple[Wish, ...] = ()
    balance: str | None = None
    labels: LabelRule = field(default_factory=LabelRule)

    @property
    def levels(self) -> Sequence[str]:
        """Those at which the place of a host has to be known."""
        own = [one.level for one in self.slices]
        return own if self.balance is None else [*own, self.balance]

    @property
    def step(self) -> int:
        """The gang's hosts are a multiple of it."""
        return self.slices[0].nodes if self.slices else 1


ANYWHERE: Final = PlacementRule()
