"""A crash of the control plane of a scenario at a named commit, and its downtime.

Its commits remain. The rest of the same plan is not done, and the plan is forgotten.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from muster.domain.strict import StrictModel

Commit = Literal[
    "placement.place.before_commit",
    "placement.place.after_commit",
    "reclaim.notify.before_commit",
    "reclaim.notify.after_commit",
]


class Crash(StrictModel):
    """A crash of the control plane at its next commit of this kind, before it or after it, for ``down_s``.

    Meanwhile nothing is decided; hosts continue, with the deadlines that they have.
    """

    at: Commit
    down_s: Annotated[float, Field(gt=0, le=31_536_000)] = 30.0


class DiedError(Exception):
    """The crash happens here."""


@dataclass(slots=True)
class Crashes:
    """The crashes of a scenario.

    ``armed``: in the order in which they came; each is reached once. ``up_ms``: when the control plane is back.
    """

    armed: list[Crash] = field(default_factory=list)
    up_ms: int = 0

    def arm(self, crash: Crash) -> None:
        self.armed.append(crash)

    def is_down(self, now_ms: int) -> bool:
        return now_ms < self.up_ms

    def reach(self, point: Commit, now_ms: int) -> None:
        """Crash if the point is armed; of several crashes at one point, take the first. Raises ``DiedError``."""
        crash = next((one for one in self.armed if one.at == point), None)
        if crash is not None:
            self.up_ms = now_ms + round(crash.down_s * 1000)
            self.armed.remove(crash)
            raise DiedError
