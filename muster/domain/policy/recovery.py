"""The continuation of a gang that a fault or maintenance has interrupted."""

from typing import Annotated

from pydantic import Field

from muster.domain.strict import StrictModel


class SparePolicy(StrictModel):
    """The number of hosts in each cohort that stay free for gangs that lose some.

    It follows from the failure rate of this fleet's GPUs.
    """

    confidence: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="The probability that the spares suffice: 0.99 keeps as many hosts of a cohort free as are away "
        "at once in all but 1 % of the time. Jobs of reclaimable tiers run there meanwhile. Null: no "
        "spares are kept.",
    )
    replacement_h: Annotated[float, Field(gt=0, le=8_760, strict=False)] = Field(
        24.0, description="A host that has failed is away for so many hours."
    )


class RecoveryPolicy(StrictModel):
    """The time that a gang waits for hosts that replace its lost ones."""

    wait_for_replacement_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        120.0,
        description="A gang that requires one domain has lost hosts there, and none of that domain can replace them. "
        "It keeps its good GPUs and waits so long for a replacement; then it is placed again as a whole. "
        "0: at once. An elastic gang continues with fewer hosts instead.",
    )
    spares: SparePolicy = Field(default_factory=SparePolicy)
