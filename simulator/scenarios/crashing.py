"""The control plane of a scenario dies around a commit that was named, and is away for a while.

What it had committed stands; what the same plan had beside that is not done, and nobody remembers that it was planned.
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
    """The control plane dies at its next commit of this kind, before it or after it, and is away for ``down_s``.

    Meanwhile nothing is decided; hosts go on, with the deadlines that they were told.
    """

    at: Commit
    down_s: Annotated[float, Field(gt=0, le=31_536_000)] = 30.0


class DiedError(Exception):
    """Here."""


@dataclass(slots=True)
class Crashes:
    """``armed``: in the order in which they came; each is reached once. ``up_ms``: when it is back."""

    armed: list[Crash] = field(default_factory=list)
    up_ms: int = 0

    def arm(self, crash: Crash) -> None:
        self.armed.append(crash)

    def is_down(self, now_ms: int) -> bool:
        return now_ms < self.up_ms

    def reach(self, point: Commit, now_ms: int) -> None:
        """Raises ``DiedError`` at a point that is armed; of one point, at the crash that was armed first."""
        crash = next((one for one in self.armed if one.at == point), None)
        if crash is not None:
            self.up_ms = now_ms + round(crash.down_s * 1000)
            self.armed.remove(crash)
            raise DiedError
