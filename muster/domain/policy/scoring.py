"""The part of the health policy by which findings become evidence, a score and a standing."""

from functools import cached_property
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from muster.domain.evidence.findings import Severity
from muster.domain.policy.gpu_detectors import DetectorPolicy
from muster.domain.policy.quantities import DAY_S, STATE_REPORT_S, Number, Percent, Points, PositivePoints, Seconds
from muster.domain.strict import Name, StrictModel

SeverityName = Literal["info", "warning", "degraded", "condemning"]
_NAMES: Final[tuple[SeverityName, ...]] = ("info", "warning", "degraded", "condemning")
"""Names of severities in the order of ``Severity``."""


class WeightPolicy(StrictModel):
    """The points that evidence of one severity takes off the score."""

    points: Points = Field(description="The points that new evidence takes off a score of 100.")
    half_life_s: Seconds = Field(description="After each such time it takes off half as much.")
    counts_for_s: Seconds = Field(description="After so long it takes off nothing.")


class EvidencePolicy(StrictModel):
    """Joining. A finding joins evidence of the same fault that was last seen within the window."""

    coalescing_s: Seconds = Field(
        5.0,
        description="Within it the same fault reported by NVML, kernel log and DCGM is one evidence with several "
        "sources (the window of the Delta study of GPU errors).",
    )
    counter_window_s: Seconds = Field(
        30.0,
        description="The same window for the detectors in `counter_detectors`: a counter shows a fault up to one "
        "sample's interval later, or two where a poll failed.",
    )
    dcgm_window_s: Seconds = Field(
        90.0,
        description="The same window where only DCGM reports one of the two: an exporter reads each half a minute, "
        "and reports an XID after NVML and the kernel log.",
    )
    restate_s: Seconds = Field(
        600.0,
        description="A fault that lasts is stated again at this interval, so that it does not decay while it lasts.",
    )
    standing_window_s: Seconds = Field(
        1500.0, description="Statements of a lasting fault within it are one evidence. It exceeds `restate_s`."
    )
    state_window_s: Seconds = Field(
        9000.0,
        description="Statements of one state within it are one evidence: hosts report a state when it changes and "
        "each hour.",
    )
    standing_detectors: tuple[Name, ...] = Field(
        default=(
            "row_remap",
            "clock_events",
            "gpu_lost",
            "freshness",
            "gpu_count",
            "recovery_action",
            "sram_threshold",
            "unrepairable_memory",
            "retired_pages",
            "peers",
        ),
        strict=False,
        description="Detectors whose faults last until they are repaired; a repair is not done while one of them is "
        "active.",
    )
    counter_detectors: tuple[Name, ...] = Field(
        default=("ecc_uncorrected", "row_remap_rise"),
        strict=False,
        description="Detectors that read a counter's rise.",
    )
    stale_action_s: Seconds = Field(
        600.0,
        description="A finding that arrives so late is kept and shown but moves nothing, unless it condemns by our "
        "own measurement (I26).",
    )

    @model_validator(mode="after")
    def _standing_faults_stay_one(self) -> Self:
        """`coalescing_s` ≤ `restate_s` < `standing_window_s`, `coalescing_s` ≤ `counter_window_s`, and
        `state_window_s` > 3600, the interval at which agents report a state.
        """
        if self.state_window_s <= STATE_REPORT_S:
            raise ValueError(f"state_window_s must exceed {STATE_REPORT_S:g}: agents report a state each hour")
        if not self.coalescing_s <= self.restate_s < self.standing_window_s:
            raise ValueError("coalescing_s <= restate_s < standing_window_s must hold, or a standing fault is many")
        if self.counter_window_s < self.coalescing_s:
            raise ValueError("counter_window_s must not be less than coalescing_s, or one fault is reported twice")
        return self


class ScorePolicy(StrictModel):
    """Weights of evidence, and the lines of the score by which a standing moves.

    INFO weighs nothing: a tenant's own program can bring it about at will.
    Measured condemning evidence weighs in full until a later burn-in, repair or dismissal, whatever its half life.
    """

    info: WeightPolicy = Field(
        WeightPolicy(points=0.0, half_life_s=DAY_S, counts_for_s=7 * DAY_S), description="Evidence of severity INFO."
    )
    warning: WeightPolicy = Field(
        WeightPolicy(points=8.0, half_life_s=DAY_S, counts_for_s=7 * DAY_S), description="Evidence of severity WARNING."
    )
    degraded: WeightPolicy = Field(
        WeightPolicy(points=35.0, half_life_s=0.5 * DAY_S, counts_for_s=7 * DAY_S),
        description="Evidence of severity DEGRADED; reported evidence weighs no more than this.",
    )
    condemning: WeightPolicy = Field(
        WeightPolicy(points=100.0, half_life_s=28 * DAY_S, counts_for_s=365 * DAY_S),
        description="Evidence of severity CONDEMNING.",
    )
    quarantine_line: Points = Field(
        30.0, description="Points of 100. Under it, by measured evidence alone, a GPU is QUARANTINED."
    )
    lower_line: Points = Field(70.0, description="Points of 100. Under it a GPU is SUSPECT.")
    raise_line: Points = Field(
        85.0,
        description="Points of 100. At it or above, for `raise_dwell_s`, a SUSPECT GPU returns to its standing before.",
    )
    reported_points_max: Points = Field(
        60.0,
        description="The most points that all reported evidence of one GPU takes off, so that it never quarantines.",
    )

    weights_of: dict[Name, dict[SeverityName, WeightPolicy]] = Field(
        {"freshness": {"degraded": WeightPolicy(points=35.0, half_life_s=1800.0, counts_for_s=DAY_S)}},
        description="Weights for one detector's findings, in place of a severity's: detector, then severity (`info`, "
        "`warning`, `degraded`, `condemning`), then all three numbers. They apply to existing evidence "
        "too, except for how long it counts, which is stored with it. By default missing signals weigh "
        "half as much each 30 min after they are back.",
    )

    def weight(self, severity: Severity, detector: str = "") -> WeightPolicy:
        """Return the weight of a severity for ``detector``; the general weight where it has none of its own."""
        own = self.weights_of.get(detector)
        if own is not None and (weight := own.get(_NAMES[severity])) is not None:
            return weight
        return (self.info, self.warning, self.degraded, self.condemning)[severity]

    @cached_property
    def weighs_info(self) -> bool:
        """Return whether any evidence of severity INFO weighs."""
        own = (weights["info"].points for weights in self.weights_of.values() if "info" in weights)
        return any(points > 0 for points in (self.info.points, *own))

    @model_validator(mode="after")
    def _lines_are_in_order(self) -> Self:
        """`quarantine_line` < `lower_line` < `raise_line`, and `reported_points_max` ≤ 100 - `quarantine_line`."""
        if not self.quarantine_line < self.lower_line < self.raise_line <= 100:
            raise ValueError("quarantine_line < lower_line < raise_line <= 100 must hold")
        if 100 - self.reported_points_max < self.quarantine_line:
            raise ValueError("reported_points_max would let reported evidence alone go under the quarantine line")
        return self


class StandingPolicy(StrictModel):
    """The duration of standings, and the damping of transitions by rules."""

    probation_s: Seconds = Field(
        28 * DAY_S, description="The time from a passed burn-in, or the last finding of WARNING or worse, to HEALTHY."
    )
    reclaimable_only_s: Seconds = Field(
        3 * DAY_S, description="The first part of a probation, in which only reclaimable tiers may have the GPU."
    )
    raise_dwell_s: Seconds = Field(
        1800.0, description="How long a SUSPECT GPU's score must stay at `raise_line` or above."
    )
    flap_moves: Annotated[int, Field(ge=2, le=100)] = Field(
        3, description="So many falls to SUSPECT by measured evidence within `flap_window_s` quarantine a GPU."
    )
    flap_window_s: Seconds = Field(
        7 * DAY_S,
        description="The window of `flap_moves`: long enough for a fault that each day's work brings back.",
    )

    @model_validator(mode="after")
    def _reclaimable_within_probation(self) -> Self:
        """`reclaimable_only_s` ≤ `probation_s`."""
        if self.reclaimable_only_s > self.probation_s:
            raise ValueError("reclaimable_only_s must not exceed probation_s")
        return self


class ClockEventPolicy(StrictModel):
    """The rule by which clocks that heat, power or hardware reduces are a finding."""

    window_samples: Annotated[int, Field(ge=1, le=60)] = Field(10, description="How many of the last samples count.")
    harmful_samples: Annotated[int, Field(ge=1, le=60)] = Field(
        6, description="The same harmful reason must have been set in so many of them."
    )

    @model_validator(mode="after")
    def _within_the_window(self) -> Self:
        """`harmful_samples` ≤ `window_samples`."""
        if self.harmful_samples > self.window_samples:
            raise ValueError("harmful_samples must not exceed window_samples")
        return self


class RowRemapPolicy(StrictModel):
    """Rows of memory that were replaced by spare ones."""

    uncorrected_rows_max: Number = Field(
        512,
        description="A board with so many rows replaced after uncorrectable errors is used up (DCGM's limit).",
    )


class PeerPolicy(DetectorPolicy):
    """The rule by which a GPU that differs from the others of its gang is a finding.

    The distance is the modified z-score of Iglewicz and Hoaglin (1993): 0.6745 · (value - median) / MAD, over the GPUs
    of the gang that have similar load. A MAD under its floor counts as the floor, so that tiny differences between
    nearly equal GPUs do not count.
    """

    is_on: bool = Field(default=True, description="Whether GPUs are compared at all; `mode` must not be `off` either.")
    gpus_min: Annotated[int, Field(ge=4, le=100_000)] = Field(
        6, description="So many GPUs of a gang must be under like load before they are compared."
    )
    utilisation_min_percent: Percent = Field(
        50.0, description="Gangs whose median utilisation is lower are idle, and not compared."
    )
    utilisation_band_percent: PositivePoints = Field(
        10.0, description="A GPU is under like load if it is within so many points of the gang's median utilisation."
    )
    z_min: Annotated[float, Field(ge=3, le=100, strict=False)] = Field(
        5.0,
        description="A GPU with this modified z-score or more is apart; 3.5 is the authors' own number for one test "
        "of one sample.",
    )
    power_floor_w: Annotated[float, Field(gt=0, le=1000, strict=False)] = Field(
        14.0, description="W, 2 % of 700 W: the least MAD of power."
    )
    sm_clock_floor_mhz: Annotated[float, Field(gt=0, le=1000, strict=False)] = Field(
        20.0, description="MHz, 1 % of 1980 MHz: the least MAD of the SM clock."
    )
    temperature_floor_c: Annotated[float, Field(gt=0, le=100, strict=False)] = Field(
        2.0, description="°C: the least MAD of temperature; places in one chassis differ by that much."
    )
    utilisation_floor_percent: PositivePoints = Field(2.0, description="Points: the least MAD of utilisation.")
    window_rounds: Annotated[int, Field(ge=1, le=60)] = Field(
        10, description="How many of the last rounds count; there is one a minute."
    )
    apart_rounds: Annotated[int, Field(ge=1, le=60)] = Field(
        8, description="A GPU must have been apart in the same metric in so many of them before it is a finding."
    )

    @model_validator(mode="after")
    def _within_the_window(self) -> Self:
        """`apart_rounds` ≤ `window_rounds`."""
        if self.apart_rounds > self.window_rounds:
            raise ValueError("apart_rounds must not exceed window_rounds")
        return self
