"""What a gang asks of where its hosts stand, beside its required and its preferred level: plain frozen data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

Labels = tuple[tuple[str, str], ...]
"""Of a node: names and values, sorted."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Each ``nodes`` hosts that follow each other by rank, counted from the first, stand in one domain of ``level``."""

    level: str
    nodes: int


@dataclass(frozen=True, slots=True)
class LabelRule:
    """``required``: of each name the node's value is one of these. ``forbidden``: it is none of these."""

    required: tuple[tuple[str, frozenset[str]], ...] = ()
    forbidden: tuple[tuple[str, frozenset[str]], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.required or self.forbidden)

    def admits(self, labels: Iterable[tuple[str, str]]) -> bool:
        values = dict(labels)
        has_all = all(values.get(name) in wanted for name, wanted in self.required)
        return has_all and not any(values.get(name) in barred for name, barred in self.forbidden)


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """``slices``: widest level first; each one's hosts are a multiple of the next one's, the gang's of the first one's.

    ``wished``: slices that stand for ``slices`` where the gang fits with them. ``balance``: a level over whose domains
    the gang is spread evenly, over the fewest that hold it.
    """

    slices: tuple[Slice, ...] = ()
    wished: tuple[Slice, ...] = ()
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
