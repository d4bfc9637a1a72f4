"""One figure of the house with its bar, as ``benchmarks/results/house.json`` has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class HouseFigure:
    """Figure of the house. ``value`` None: nothing was recorded, so the bar does not hold. ``bar``: the largest good
    value.
    """

    name: str
    value: float | None
    unit: str
    bar: float
    peers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return whether the value was measured and is within the bar."""
        return self.value is not None and self.value <= self.bar

    def row(self) -> dict[str, Any]:
        """Return the figure's entry in the results."""
        return {
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "bar": self.bar,
            "better": "lower",
            "holds": self.holds,
            "peers": dict(self.peers),
        }
