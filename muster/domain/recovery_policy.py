"""How a gang goes on that a fault or maintenance has interrupted."""

from typing import Annotated

from pydantic import Field

from muster.domain.strict import StrictModel


class SparePolicy(StrictModel):
    """How many hosts of each cohort are kept free for gangs that lose some, by how often this fleet's GPUs fail."""

    confidence: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="So sure there are enough spares: 0.99 keeps as many hosts of a cohort free as are away at once in "
        "all but 1 % of the time. Jobs of tiers that a rule may reclaim run there meanwhile. Null: none are kept.",
    )
    replacement_h: Annotated[float, Field(gt=0, le=8_760, strict=False)] = Field(
        24.0, description="For so many hours a host that has failed is away."
    )


class RecoveryPolicy(StrictModel):
    """How long a gang waits for hosts that take the place of those it lost."""

    wait_for_replacement_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        120.0,
        description="A gang that requires one domain and lost hosts there, while none of that domain can take their "
        "place, keeps its good GPUs and waits so long for one; then it is placed anew as a whole. 0: at once. An "
        "elastic gang goes on with fewer hosts instead.",
    )
    spares: SparePolicy = Field(default_factory=SparePolicy)
