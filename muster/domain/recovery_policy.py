"""How a gang goes on that a fault or maintenance has interrupted."""

from typing import Annotated

from pydantic import Field

from muster.domain.strict import StrictModel


class RecoveryPolicy(StrictModel):
    """How long a gang waits for hosts that take the place of those it lost."""

    wait_for_replacement_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        120.0,
        description="A gang that requires one domain and lost hosts there, while none of that domain can take their "
        "place, keeps its good GPUs and waits so long for one; then it is placed anew as a whole. 0: at once. An "
        "elastic gang goes on with fewer hosts instead.",
    )
