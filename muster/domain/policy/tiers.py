"""Tiers, and the rules by which their jobs are reclaimed."""

from typing import Annotated

from pydantic import Field

from muster.domain.policy.quantities import Seconds
from muster.domain.strict import Name, StrictModel


class TierPolicy(StrictModel):
    """One class of service."""

    priority: Annotated[int, Field(ge=0, le=1000)] = Field(
        description="Higher is placed first, and may reclaim from reclaimable tiers below it."
    )
    notice_s: Seconds | None = Field(
        None, description="The notice before GPUs are taken back. Null: no rule ever reclaims from this tier (I7)."
    )
    min_run_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = Field(
        1800.0, description="No attempt is reclaimed before it has run that long (I9)."
    )
    quick_check_s: Annotated[float, Field(ge=0, le=30, strict=False)] = Field(
        0.0,
        description="For how long each host computes known sums on a job's GPUs before it is ready to start. 0: not "
        "at all, since each start waits for it: torch alone takes 2 s of a core, and a start without it "
        "0.2 s. Up to 30 s more pass until torch has started. A GPU that computes wrong is quarantined "
        "by it.",
    )
    pairwise_check_s: Annotated[float, Field(ge=0, le=600, strict=False)] = Field(
        0.0,
        description="How long a round of the pairwise check may take, which the hosts of a gang make once all are "
        "ready and before any starts, the import of torch included. 0: there is none. At most "
        "`dispatch.pairwise.rounds_max` rounds are made, one if all is well. A host that is named is "
        "avoided, and the job is placed elsewhere.",
    )
    standings: tuple[str, ...] = Field(
        default=("HEALTHY",), strict=False, description="The standings of GPUs on which it may be placed."
    )
    homogeneity: tuple[Name, ...] | None = Field(
        default=None,
        min_length=1,
        strict=False,
        description="The attributes in which all GPUs of one gang must be equal, out of `health.cohort.attributes`; "
        "null: all of these. A swapped board with another VBIOS, for example, keeps its host whole for a "
        "tier that does not name `vbios_version`.",
    )


class ReclaimPolicy(StrictModel):
    """The limits of reclaim (I9), and the estimated loss of an interrupted attempt."""

    cap_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        0.25,
        description="In any `window_s` a tenant loses at most this fraction of its peak of GPUs in that window, or its "
        "smallest running job where that is more.",
    )
    window_s: Seconds = Field(3600.0, description="The window of `cap_fraction`.")
    restart_cost_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        120.0,
        description="The estimated loss of each GPU of a victim in addition to its unsaved work. Victims are chosen "
        "by the least sum.",
    )
    shrink_cost_factor: Annotated[float, Field(ge=0, le=1_000_000, strict=False)] = Field(
        10.0,
        description="Elastic gangs give hosts and continue with fewer before any gang has to end, if that loses at "
        "most so many times what the cheapest whole victims would lose. 0: never; 1: only if it loses no "
        "more.",
    )


def default_tiers() -> dict[str, TierPolicy]:
    return {
        "reserved": TierPolicy(priority=300),
        "on_demand": TierPolicy(priority=200),
        "spot": TierPolicy(priority=100, notice_s=120.0, standings=("HEALTHY", "PROBATION")),
    }
