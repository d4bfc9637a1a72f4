"""The device that a burn-in computes on: a real GPU by CUDA, or the CPU beneath a simulated one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class ComputeDevice:
    """A device.

    ``is_wrong`` and ``rates``: the silent fault and the speed of a simulated GPU; a real one's are measured.
    """

    kind: Literal["cpu", "cuda"]
    is_wrong: bool = False
    rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_simulated(self) -> bool:
        return self.kind == "cpu"
