"""The times of jobs' environments: their builds, claims of builds, and failures."""

from typing import Annotated

from pydantic import Field

from muster.domain.policy.quantities import Seconds
from muster.domain.strict import StrictModel


class EnvironmentPolicy(StrictModel):
    """Builds of environments from lock files. The section `content` has limits and retention of what is built."""

    build_s: Annotated[float, Field(ge=10, le=86_400, strict=False)] = Field(
        900.0,
        description="How long a host may take to get a job's environment before the job holds any GPU. It builds it, "
        "or waits until another host has built it.",
    )
    ready_s: Annotated[float, Field(ge=1, le=86_400, strict=False)] = Field(
        300.0,
        description="How long a host that has GPUs of the job may take to get its environment, which is built by then. "
        "It is added to `dispatch.ready_within_s`.",
    )
    lease_s: Seconds = Field(
        60.0, description="A host that builds and does not say so for so long has lost the build to another one."
    )
    failed_hours: Annotated[int, Field(ge=1, le=8_760)] = Field(
        24,
        description="For so long each job that needs an environment that could not be built is held, with the line "
        "that failed. `muster job release` lets it be built again at once.",
    )
