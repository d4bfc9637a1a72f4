"""The health part of the policy: every number by which findings, scores, standings and the breaker are judged.

Seconds are seconds of wall clock, fractions are of one, points are of a score's 100.
"""

from typing import Annotated, Self

from pydantic import Field, model_validator

from muster.domain.evidence import Severity
from muster.domain.strict import Name, StrictModel

Seconds = Annotated[float, Field(gt=0, le=31_536_000, strict=False)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=False)]
Points = Annotated[float, Field(ge=0, le=100, strict=False)]
Number = Annotated[int, Field(ge=1, le=1_000_000)]

DAY_S = 86_400.0


class WeightPolicy(StrictModel):
    """What evidence of one severity weighs: ``points`` at once, half after each ``half_life_s``, none after
    ``counts_for_s``.
    """

    points: Points
    half_life_s: Seconds
    counts_for_s: Seconds


class EvidencePolicy(StrictModel):
    """Joining. A finding joins evidence of the same fault that was last seen within the window.

    ``coalescing_s``: the same fault told by NVML, kernel log and DCGM (the Delta study's window).
    ``counter_window_s``: a counter shows a fault up to a sample's interval later, or two where a poll failed.
    ``restate_s``: a fault that stands is stated again that often, so that it does not decay while it lasts;
    ``standing_window_s``: statements of a standing fault within it are one evidence.
    ``stale_action_s``: findings that are not condemning act no more at that age (I26).
    """

    coalescing_s: Seconds = 5.0
    counter_window_s: Seconds = 30.0
    restate_s: Seconds = 600.0
    standing_window_s: Seconds = 1500.0
    standing_detectors: tuple[Name, ...] = Field(
        default=("row_remap", "clock_events", "gpu_lost", "gpu_count", "recovery_action"), strict=False
    )
    counter_detectors: tuple[Name, ...] = Field(default=("ecc_uncorrected", "row_remap_rise"), strict=False)
    stale_action_s: Seconds = 600.0

    @model_validator(mode="after")
    def _standing_faults_stay_one(self) -> Self:
        if not self.coalescing_s <= self.restate_s < self.standing_window_s:
            raise ValueError("coalescing_s <= restate_s < standing_window_s must hold, or a standing fault is many")
        if self.counter_window_s < self.coalescing_s:
            raise ValueError("counter_window_s must not be less than coalescing_s, or one fault is told twice")
        return self


class ScorePolicy(StrictModel):
    """Weights and lines. ``reported_points_max``: what all reported evidence of one GPU weighs together at most.

    INFO weighs nothing: a tenant's own program can bring it about at will.
    Measured condemning evidence weighs in full until a later burn-in, repair or dismissal, whatever its half life.
    """

    info: WeightPolicy = WeightPolicy(points=0.0, half_life_s=DAY_S, counts_for_s=7 * DAY_S)
    warning: WeightPolicy = WeightPolicy(points=8.0, half_life_s=DAY_S, counts_for_s=7 * DAY_S)
    degraded: WeightPolicy = WeightPolicy(points=35.0, half_life_s=0.5 * DAY_S, counts_for_s=7 * DAY_S)
    condemning: WeightPolicy = WeightPolicy(points=100.0, half_life_s=28 * DAY_S, counts_for_s=365 * DAY_S)
    quarantine_line: Points = 30.0
    lower_line: Points = 70.0
    raise_line: Points = 85.0
    reported_points_max: Points = 60.0

    def weight(self, severity: Severity) -> WeightPolicy:
        return (self.info, self.warning, self.degraded, self.condemning)[severity]

    @model_validator(mode="after")
    def _lines_are_in_order(self) -> Self:
        if not self.quarantine_line < self.lower_line < self.raise_line <= 100:
            raise ValueError("quarantine_line < lower_line < raise_line <= 100 must hold")
        if 100 - self.reported_points_max < self.quarantine_line:
            raise ValueError("reported_points_max would let reported evidence alone go under the quarantine line")
        return self


class StandingPolicy(StrictModel):
    """Damping of rule moves.

    ``raise_dwell_s``: how long a SUSPECT GPU's score must stay above the raise line.
    ``flap_moves`` falls to SUSPECT within ``flap_window_s`` are flapping.
    """

    probation_s: Seconds = 28 * DAY_S
    reclaimable_only_s: Seconds = 3 * DAY_S
    raise_dwell_s: Seconds = 1800.0
    flap_moves: Annotated[int, Field(ge=2, le=100)] = 3
    flap_window_s: Seconds = DAY_S

    @model_validator(mode="after")
    def _reclaimable_within_probation(self) -> Self:
        if self.reclaimable_only_s > self.probation_s:
            raise ValueError("reclaimable_only_s must not exceed probation_s")
        return self


class RepairPolicy(StrictModel):
    """``attempts_max`` for one serial and fault group within ``attempts_window_s``; then the board is to be retired.

    ``retires_by_rule``: whether a rule may retire by itself; else it only proposes, and a person does it.
    """

    timeout_s: Seconds = 1500.0
    attempts_max: Number = 3
    attempts_window_s: Seconds = 30 * DAY_S
    retires_by_rule: bool = False


class BreakerPolicy(StrictModel):
    """How many GPUs rules may quarantine: max(floor, share · GPUs there), rounded down.

    ``fleet_window_*`` within ``window_s``; the others for all GPUs that rules took out and that are not back.
    """

    window_s: Seconds = 600.0
    fleet_window_share: Fraction = 0.05
    fleet_window_floor: Number = 1
    fleet_share: Fraction = 0.20
    fleet_floor: Number = 2
    rack_share: Fraction = 0.25
    rack_floor: Number = 1
    cohort_share: Fraction = 0.10
    cohort_floor: Number = 1
    tenant_share: Fraction = 0.10
    tenant_floor: Number = 1


class ClockEventPolicy(StrictModel):
    """A clock-event bit is a finding when set in ``harmful_samples`` of the last ``window_samples``."""

    window_samples: Annotated[int, Field(ge=1, le=60)] = 10
    harmful_samples: Annotated[int, Field(ge=1, le=60)] = 6

    @model_validator(mode="after")
    def _within_the_window(self) -> Self:
        if self.harmful_samples > self.window_samples:
            raise ValueError("harmful_samples must not exceed window_samples")
        return self


class RowRemapPolicy(StrictModel):
    """``uncorrected_rows_max``: from here on the board is used up (DCGM's limit)."""

    uncorrected_rows_max: Number = 512


class BurnInPolicy(StrictModel):
    """``quorum``: how many GPUs of one key must have voted before a majority means anything.

    ``slow_fraction``: a rate under that fraction of its peers' median fails.
    ``needs_majority``: whether a band that its peers cannot decide keeps a burn-in from passing.
    ``clean_counters``: metrics that must not have grown during it.
    ``deadline_s``: how long one may run; ``tries_max``: how often an order is given before it is abandoned;
    ``again_s``: when an UNPROVEN GPU without a verdict that moves it is burnt in again.
    ``asks_per_s``: how often all agents together ask for orders, each at least once a minute.
    """

    quorum: Annotated[int, Field(ge=2, le=1000)] = 3
    slow_fraction: Fraction = 0.85
    needs_majority: bool = False
    clean_counters: tuple[Name, ...] = Field(
        default=(
            "ecc_uncorrected_volatile",
            "ecc_uncorrected_aggregate",
            "remapped_rows_corrected",
            "remapped_rows_uncorrected",
            "pcie_replays",
            "nvlink_replays",
        ),
        strict=False,
    )
    deadline_s: Seconds = 900.0
    tries_max: Annotated[int, Field(ge=1, le=100)] = 3
    again_s: Seconds = 3600.0
    asks_per_s: Annotated[float, Field(gt=0, le=10_000, strict=False)] = 20.0


class CohortPolicy(StrictModel):
    """``attributes``: what must be equal; ``tolerance``: how far a fingerprint's figures may lie from the median."""

    attributes: tuple[Name, ...] = Field(
        default=("model", "memory_bytes", "compute_capability", "driver_version", "cuda_version", "vbios_version"),
        min_length=1,
        strict=False,
    )
    tolerance: Fraction = 0.05


class HealthPolicy(StrictModel):
    evidence: EvidencePolicy = Field(default_factory=EvidencePolicy)
    score: ScorePolicy = Field(default_factory=ScorePolicy)
    standing: StandingPolicy = Field(default_factory=StandingPolicy)
    repair: RepairPolicy = Field(default_factory=RepairPolicy)
    breaker: BreakerPolicy = Field(default_factory=BreakerPolicy)
    clock_events: ClockEventPolicy = Field(default_factory=ClockEventPolicy)
    row_remap: RowRemapPolicy = Field(default_factory=RowRemapPolicy)
    burn_in: BurnInPolicy = Field(default_factory=BurnInPolicy)
    cohort: CohortPolicy = Field(default_factory=CohortPolicy)
