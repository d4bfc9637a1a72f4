"""The rules by which a rank counts as a straggler, and what follows."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from muster.domain.policy.quantities import Fraction, Seconds
from muster.domain.strict import StrictModel

StragglerRule = Literal["notify", "swap"]
"""The reaction to a straggler: report it, or place the job again without its host where the gain exceeds the cost."""


class StragglerPolicy(StrictModel):
    """The watch over ranks that compute longer than their peers, which wait for them at each step.

    A rank is compared with ranks of the same pipeline stage and tensor index alone.
    """

    is_on: bool = Field(default=True, description="Whether stragglers are judged at all.")
    window_s: Seconds = Field(
        10.0, description="A window is the smallest power of two of steps, at least 4, that takes so long."
    )
    num_windows: Annotated[int, Field(ge=2, le=8)] = Field(
        5, description="So many newest windows are judged together (the M of K of M)."
    )
    num_slow: Annotated[int, Field(ge=2, le=8)] = Field(
        3,
        description="A rank is a straggler if it is slow in so many of them (the K). Of two peers, either may be the "
        "faster one by chance, so there it must be slow in all of them, unless its own past confirms it.",
    )
    ratio: Annotated[float, Field(ge=1.02, le=10, strict=False)] = Field(
        1.12, description="A rank is slow if its own compute is longer than so many times the median of its peers."
    )
    z: Annotated[float, Field(ge=1, le=100, strict=False)] = Field(
        3.0, description="Its own compute is also beyond the median by so many widths of the noise (median/MAD)."
    )
    wait_share: Fraction = Field(
        0.4, description="Its peers also wait longer than it does, by so much of its additional compute."
    )
    cause_share: Fraction = Field(
        0.4, description="A part or reading is the cause if it makes up so much of the additional compute."
    )
    on_straggler: StragglerRule = Field(
        "notify",
        description="`notify`: an event and a verdict. `swap`: after the next checkpoint, the job is placed again "
        "without the host, where the gain exceeds the cost and a host is free.",
    )
    swaps: Annotated[int, Field(ge=0, le=100)] = Field(
        1, description="So many swaps of one job at most, as a swap costs no restart. No host is swapped twice."
    )
    horizon_s: Seconds = Field(
        86_400.0, description="The remaining time of a job for the gain of a swap; less if its wall time ends before."
    )
    restart_s: Seconds = Field(300.0, description="The cost of a swap: the time until the job computes again.")

    @model_validator(mode="after")
    def _some_are_slow(self) -> Self:
        """`num_slow` ≤ `num_windows`."""
        if self.num_slow > self.num_windows:
            raise ValueError("num_slow must not exceed num_windows")
        return self
