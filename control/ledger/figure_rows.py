"""Sums of facts that are counted in Python rather than in SQL, and their rows in the figure store."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ledger.figures.sketch import Sketch, merged, sketch_of
from muster.domain.ids import TenantId


class Group(NamedTuple):
    """What the jobs of a fact have in common. Unknown values are empty."""

    tenant_id: TenantId = TenantId("")
    tier: str = ""
    job_class: str = ""
    site: str = ""


@dataclass(slots=True)
class Part:
    """Observations of a group. ``values``: not yet in ``sketch``."""

    num: int = 0
    total: float = 0.0
    values: list[float] = field(default_factory=list)
    sketch: Sketch = field(default_factory=Sketch)


@dataclass(slots=True)
class Tally:
    """Sums by figure, part and group."""

    parts: dict[tuple[str, str, Group], Part] = field(default_factory=dict)

    def add(
        self,
        figure: str,
        part: str,
        group: Group,
        *,
        num: int = 1,
        total: float | None = None,
        value: float | None = None,
    ) -> Part:
        """Add ``num`` observations to a part, and return it.

        ``total``: their sum; None: one for each. ``value``: one for the sketch.
        """
        known = self.parts.setdefault((figure, part, group), Part())
        known.num += num
        known.total += num if total is None else total
        if value is not None:
            known.values.append(value)
        return known

    def spread(self, figure: str, part: str, group: Group, values: npt.NDArray[np.float64]) -> None:
        """Add an observation for each value of 0 or more, and all of them to the sketch. Raises ``ValueError``."""
        if len(values):
            sketch = sketch_of(values)
            known = self.add(figure, part, group, num=len(values), total=float(values.sum()))
            known.sketch = merged((known.sketch, sketch))


def rows_of(tally: Tally) -> list[dict[str, Any]]:
    """Return a row each part, without its time."""
    return [
        {"figure": figure, "part": part, **group._asdict(), **_measured(found)}
        for (figure, part, group), found in sorted(tally.parts.items(), key=lambda item: item[0])
    ]


def _measured(part: Part) -> dict[str, Any]:
    sketch = merged((sketch_of(part.values), part.sketch))
    return {
        "num": part.num,
        "total": part.total,
        "least": sketch.least if sketch.counts else None,
        "most": sketch.most if sketch.counts else None,
        "buckets": list(sketch.buckets),
        "counts": list(sketch.counts),
    }
