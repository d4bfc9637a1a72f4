"""The pairwise check of a gang's hosts before it starts. The tier decides whether and for how long it runs."""

from typing import Annotated, Final

from pydantic import Field

from muster.domain.strict import StrictModel

PAIRWISE_LATE_S: Final = 10.0
"""Extra time for a host's answer after its round: the host receives the round with a heartbeat, one a second.

It sends its answer with a report.
"""


class PairwisePolicy(StrictModel):
    """The work of one round of a pairwise check, and the limit of a slow host."""

    gather_bytes: Annotated[int, Field(ge=4, le=4 << 30, multiple_of=4)] = Field(
        16 << 20, description="How many bytes each host gives to an all-gather, a multiple of 4."
    )
    num_gathers: Annotated[int, Field(ge=1, le=1000)] = Field(
        5, description="So many all-gathers are timed in a round; the median counts."
    )
    rounds_max: Annotated[int, Field(ge=1, le=10)] = Field(
        4, description="The most rounds. One bad host of seven is named within four."
    )
    slow_fraction: Annotated[float, Field(ge=0.01, le=0.99)] = Field(
        0.5, description="A rate under this fraction of the median of the round's other groups is slow."
    )
