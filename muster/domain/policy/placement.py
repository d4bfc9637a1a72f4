"""The fleet's tree by name, the cost of a weak GPU to a gang, and the requests for which room is kept."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from muster.domain.gpu.levels import FLEET_LEVEL, NODE_LEVEL
from muster.domain.gpu.rails import require_rails
from muster.domain.policy.quantities import DAY_S, PositivePoints, Seconds
from muster.domain.strict import Name, StrictModel

_Rate = Annotated[float, Field(ge=0, le=1_000, strict=False)]


class HazardBand(StrictModel):
    """GPUs of a health score below `below_score`, and of no lower band."""

    below_score: PositivePoints = Field(description="Points of a score's 100.")
    failures_per_1000_h: _Rate = Field(description="Failures expected in 1,000 hours beyond a sound GPU's.")


def _default_bands() -> dict[str, HazardBand]:
    return {
        "poor": HazardBand(below_score=50.0, failures_per_1000_h=10.0),
        "weak": HazardBand(below_score=70.0, failures_per_1000_h=2.0),
        "worn": HazardBand(below_score=90.0, failures_per_1000_h=0.5),
    }


class HazardPolicy(StrictModel):
    """The rate at which a GPU ends gangs beyond that of a sound one: by its score's band, and by its board's history.

    A gang's cost is the sum over its GPUs times its expected run: its wall time, or `queue.expected_run_s`. An unknown
    GPU counts as sound. The defaults are our own choices until a fleet's own record is better.
    """

    bands: dict[Name, HazardBand] = Field(
        default_factory=_default_bands,
        description="Name of a band of scores → the failures that it adds. If there are none, scores add nothing.",
    )
    failures_per_1000_h_of_quarantine: _Rate = Field(
        0.2, description="Added for each time that its board was quarantined within `history_s`, whatever its score."
    )
    history_s: Seconds = Field(90 * DAY_S, description="How long a board's quarantines count.")
    tolerated_failures: Annotated[float, Field(gt=0, le=1_000, strict=False)] = Field(
        0.05,
        description="A place that has fewer expected failures by at least this is taken first, even if another "
        "leaves less over. Smaller differences decide only among places that are otherwise equal.",
    )

    @model_validator(mode="after")
    def _bands_are_apart(self) -> Self:
        """No two `bands` have one `below_score`."""
        scores = [band.below_score for band in self.bands.values()]
        if len(set(scores)) < len(scores):
            raise ValueError("two bands have the same below_score: give each its own, since a GPU is in one band")
        return self

    def failures_in_million_h(self, score: float | None, num_quarantines: int) -> int:
        """Return the expected failures in a million hours beyond a sound GPU's, for this score and history."""
        own = [band for band in self.bands.values() if score is not None and score < band.below_score]
        band = min(own, key=lambda band: band.below_score, default=None)
        rate = 0.0 if band is None else band.failures_per_1000_h
        return round((rate + num_quarantines * self.failures_per_1000_h_of_quarantine) * 1000)


class TypicalRequest(StrictModel):
    """A typical request of tenants: so many hosts with so many GPUs each."""

    gpus_per_node: Annotated[int, Field(ge=1, le=1_024)] = Field(description="GPUs of each host.")
    nodes: Annotated[int, Field(ge=1, le=100_000)] = Field(1, description="Hosts.")
    level: Name | None = Field(
        None,
        description="The level of `levels` at which it must be in one domain. Null: the narrowest level that can "
        "hold it.",
    )
    weight: Annotated[float, Field(gt=0, le=1_000_000, strict=False)] = Field(
        1.0, description="How often it is requested, relative to the others."
    )


def _default_requests() -> dict[str, TypicalRequest]:
    return {
        "one_gpu": TypicalRequest(gpus_per_node=1, weight=30.0),
        "two_gpus": TypicalRequest(gpus_per_node=2, weight=15.0),
        "four_gpus": TypicalRequest(gpus_per_node=4, weight=15.0),
        "one_host": TypicalRequest(gpus_per_node=8, weight=20.0),
        "two_hosts": TypicalRequest(gpus_per_node=8, nodes=2, weight=8.0),
        "four_hosts": TypicalRequest(gpus_per_node=8, nodes=4, weight=6.0),
        "eight_hosts": TypicalRequest(gpus_per_node=8, nodes=8, weight=4.0),
        "sixteen_hosts": TypicalRequest(gpus_per_node=8, nodes=16, weight=2.0),
    }


class FragmentationPolicy(StrictModel):
    """The requests for which placement keeps free GPUs usable.

    A place that costs these requests least is preferred to one that leaves less over. Free GPUs count as a fragment for
    each request that cannot use them: GPUs of a host beyond a whole number of its parts, and wholly free hosts of a
    domain beyond a whole number of its gangs (after FGD, USENIX ATC 2023). The defaults are our own choices; running
    and pending jobs soon outweigh them.
    """

    is_weighed: bool = Field(
        True, description="False: a place is chosen by best fit alone, whether or not other requests can use the rest."
    )
    typical: dict[Name, TypicalRequest] = Field(
        default_factory=_default_requests,
        description="Name of a request → its shape and weight. If there are none, only running and pending jobs count.",
    )
    typical_jobs: Annotated[float, Field(ge=0, le=1_000_000, strict=False)] = Field(
        20.0,
        description="`typical` counts as so many jobs, in addition to running and pending jobs, each of which counts "
        "as one. 0: not at all while there are any.",
    )


class PlacementPolicy(StrictModel):
    """The fleet's tree, and how health and the requests of others weigh in placement."""

    levels: Annotated[tuple[Name, ...], Field(max_length=8, strict=False)] = Field(
        default=("rack",),
        description="Levels of the tree between fleet and host, widest first, such as site, block, rack. The domain "
        "of `rack` comes from a host's join token; the domain of any other level is the host's label of "
        "that name. A host without one has no known place there, and satisfies no demand for the level.",
    )
    leaf_level: Name | None = Field(
        "rack",
        description="The level whose domains are network leaves; groups of ranks that shard a model are kept within "
        "one where they fit. Null: there is none.",
    )
    nvlink_level: Name | None = Field(
        None,
        description="The level whose domains are NVLink domains wider than a host, such as the racks of NVL72. Null: "
        "an NVLink domain is a host.",
    )
    rails: Annotated[tuple[int, ...], Field(strict=False)] = Field(
        default=(),
        description="In a rail-optimised network: the rail of each GPU of a host, by its slot, such as [0, 1, 2, 3, "
        "4, 5, 6, 7]; [0, 0, 1, 1] where two share a NIC. Rails are numbered from 0, each with as many "
        "GPUs, for 16 GPUs at most. A host's label `rails`, such as 0,1,2,3 or none, takes precedence. "
        "Gangs take the same rails on each of their hosts where they can. Empty: only hosts with the "
        "label have rails.",
    )
    hazard: HazardPolicy = Field(default_factory=HazardPolicy)
    fragmentation: FragmentationPolicy = Field(default_factory=FragmentationPolicy)

    _rails_are_some = field_validator("rails")(require_rails)

    @model_validator(mode="after")
    def _levels_are_known(self) -> Self:
        """Levels are named once, neither `fleet` nor `node`; `leaf_level`, `nvlink_level` and the `level` of a typical
        request are of them.
        """
        if len(set(self.levels)) < len(self.levels) or {FLEET_LEVEL, NODE_LEVEL} & set(self.levels):
            raise ValueError("levels must be named once each, and neither fleet nor node, which always exist")
        for name in ("leaf_level", "nvlink_level"):
            level = getattr(self, name)
            if level is not None and level not in self.levels:
                raise ValueError(f"{name} is {level}, which is none of levels: {', '.join(self.levels) or 'none'}")
        for name, request in self.fragmentation.typical.items():
            if request.level is not None and request.level not in self.levels:
                raise ValueError(
                    f"fragmentation.typical.{name}.level is {request.level}, which is none of levels: "
                    f"{', '.join(self.levels) or 'none'}"
                )
        return self
