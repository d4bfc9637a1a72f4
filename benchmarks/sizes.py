"""The two sizes at which each benchmark runs: the full one, whose figures are recorded, and the smallest one."""

from dataclasses import dataclass
from typing import Generic, TypeVar

SizeT = TypeVar("SizeT")


@dataclass(frozen=True, slots=True)
class Sizes(Generic[SizeT]):
    """Both sizes run the same code. ``smallest`` proves in seconds that the benchmark still works; no bar is judged."""

    full: SizeT
    smallest: SizeT
