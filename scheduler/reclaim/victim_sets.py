"""The candidates for one beneficiary, and sets of them that suffice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scheduler.fleet.topology import Ints
from scheduler.reclaim.shares import Shares


@dataclass(frozen=True, slots=True)
class VictimCandidates:
    """Attempts by index. ``owner``: the attempt of each GPU that would become free to the beneficiary, else -1.

    ``allowance``: GPUs that a tenant may still lose, by ``tenants``' code (I9). ``may_lose``: whether these together
    are no more than lenders may take back, where any are taken on that ground. ``shares``: of
    ``owner``, if known.
    """

    owner: Ints
    costs: npt.NDArray[np.float64]
    num_gpus: Sequence[int]
    tenants: Sequence[int]
    allowance: Mapping[int, float]
    may_lose: Callable[[Sequence[int]], bool] | None = None
    shares: Shares | None = None

    def cost_of(self, victims: Sequence[int]) -> float:
        return sum(map(self.costs.item, sorted(victims)))

    def victim_set(self, victims: Sequence[int]) -> "VictimSet":
        return VictimSet(self.cost_of(victims), tuple(sorted(victims)))


@dataclass(frozen=True, slots=True)
class VictimSet:
    """Attempts, by index, that suffice together, none to spare.

    ``cost``: GPU-seconds that they lose; ``loss``: that the gang is expected to lose on weak hosts there, which weighs
    very little.
    """

    cost: float
    victims: tuple[int, ...]
    loss: float = 0.0

    @property
    def weighed(self) -> float:
        return self.cost + self.loss

    def order(self) -> tuple[float, int, tuple[int, ...]]:
        """Return the sort key: the cheapest first, of equal ones the fewest victims."""
        return self.weighed, len(self.victims), self.victims
