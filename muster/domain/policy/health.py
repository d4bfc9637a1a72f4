"""The health part of the policy: every number by which findings, scores, standings and the breaker are judged.

Seconds are seconds of wall clock, fractions are of one, points are of a score's 100.
"""

from typing import Annotated, Self

from pydantic import Field, ValidationInfo, model_validator

from muster.domain.evidence.repairs import RepairAction, RepairVerb
from muster.domain.gpu.cohort_attributes import COHORT_ATTRIBUTES, LINKS
from muster.domain.policy.detectors import DetectorsPolicy
from muster.domain.policy.node_detectors import RuleCordonPolicy, WarmUpPolicy
from muster.domain.policy.quantities import DAY_S, Fraction, Number, Seconds
from muster.domain.policy.scoring import (
    ClockEventPolicy,
    EvidencePolicy,
    PeerPolicy,
    RowRemapPolicy,
    ScorePolicy,
    StandingPolicy,
    WeightPolicy,
)
from muster.domain.strict import Name, StrictModel, is_stored

__all__ = [
    "DAY_S",
    "BreakerPolicy",
    "BurnInPolicy",
    "ClockEventPolicy",
    "CohortPolicy",
    "DetectorsPolicy",
    "EvidencePolicy",
    "HealthPolicy",
    "PeerPolicy",
    "RepairPolicy",
    "RowRemapPolicy",
    "RuleCordonPolicy",
    "ScorePolicy",
    "StandingPolicy",
    "WarmUpPolicy",
    "WeightPolicy",
]


class RepairPolicy(StrictModel):
    """The limits of repairs: how long a repair may take, and how many a board gets before it is to be retired."""

    timeout_s: Seconds = Field(
        1500.0, description="A GPU that is in REPAIR for longer is QUARANTINED again: the repair failed."
    )
    timeout_s_of: dict[Annotated[RepairAction, Field(strict=False)], Seconds] = Field(
        {RepairAction.FIELD_DIAGNOSIS: 3600.0},
        description="The same by the repair's action, in place of `timeout_s`: "
        + ", ".join(map(str, RepairAction))
        + ". "
        "The diagnosis that an agent runs (`dcgmi diag -r 3`) takes 15 to 30 min.",
    )
    attempts_max: Number = Field(
        3, description="Repairs of one board serial for one group of faults within `attempts_window_s`."
    )
    attempts_window_s: Seconds = Field(30 * DAY_S, description="The window of `attempts_max`.")
    retires_by_rule: bool = Field(
        default=False,
        description="Whether a rule retires a board whose repairs are used up; else it proposes it to a person.",
    )

    starts_by_rule: tuple[Annotated[RepairVerb, Field(strict=False)], ...] = Field(
        default=(),
        strict=False,
        description="The repairs that a rule may order of a host's agent by itself, where they are the due remedy: "
        "any of gpu_reset, driver_reload, reboot, diagnosis. Empty: none, a person starts every repair. "
        "A rule orders a repair only for a GPU that is QUARANTINED and free, within `attempts_max` and "
        "the caps below, if the host's own `repair_verbs` allow it, no open scope of the breaker counts "
        "the GPU, and no person holds it back. Otherwise an incident opens.",
    )
    by_rule_fleet_max: Number = Field(
        8, description="A rule starts no repair while so many repairs by agents are open in the fleet."
    )
    by_rule_rack_max: Number = Field(1, description="The same in one rack; hosts of unknown rack are in none.")

    def limit_s(self, action: RepairAction | None) -> float:
        """Return how long a repair by ``action`` may take, in seconds; None: the action is not known."""
        return self.timeout_s if action is None else self.timeout_s_of.get(action, self.timeout_s)


class BreakerPolicy(StrictModel):
    """The number of GPUs that rules may quarantine: in each scope max(floor, share · GPUs there), rounded down.

    Past a cap the transitions are proposed, one incident opens, and the scope stays open until a person closes it. The
    scope of the window counts all GPUs that rules took out within `window_s`; the others also count all that rules took
    out and that have not returned.
    """

    window_s: Seconds = Field(600.0, description="How long a quarantine counts, whether or not the GPU is back.")
    fleet_window_share: Fraction = Field(0.05, description="The share of the fleet's GPUs within `window_s`.")
    fleet_window_floor: Number = Field(1, description="GPUs of the fleet within `window_s` that are always allowed.")
    fleet_share: Fraction = Field(0.20, description="The share of the fleet's GPUs.")
    fleet_floor: Number = Field(2, description="GPUs of the fleet that are always allowed.")
    rack_share: Fraction = Field(0.25, description="The share of a rack's GPUs.")
    rack_floor: Number = Field(1, description="GPUs of a rack that are always allowed.")
    cohort_share: Fraction = Field(0.10, description="The share of a cohort's GPUs.")
    cohort_floor: Number = Field(1, description="GPUs of a cohort that are always allowed.")
    tenant_share: Fraction = Field(0.10, description="The share of a tenant's GPUs.")
    tenant_floor: Number = Field(1, description="GPUs of a tenant that are always allowed.")

    @model_validator(mode="after")
    def _caps_agree(self, info: ValidationInfo) -> Self:
        """`fleet_window_share` ≤ `fleet_share`, and `fleet_window_floor` ≤ `fleet_floor`."""
        pairs = ("fleet_window_share", "fleet_share"), ("fleet_window_floor", "fleet_floor")
        wrong = [
            f"{part} must not exceed {whole}" for part, whole in pairs if getattr(self, part) > getattr(self, whole)
        ]
        if wrong and not is_stored(info):
            raise ValueError("; ".join(wrong) + ": what counts within the window counts for the fleet too")
        return self


class BurnInPolicy(StrictModel):
    """The rules by which a burn-in passes and its orders reach the hosts."""

    quorum: Annotated[int, Field(ge=2, le=1000)] = Field(
        3, description="How many GPUs of one model, driver and library must have a figure before it is compared."
    )
    slow_fraction: Fraction = Field(0.85, description="A rate under that fraction of its peers' median fails.")
    least_rates: dict[Name, Annotated[float, Field(gt=0, le=1e9, strict=False)]] = Field(
        default={"copy_to_device_gb_per_s": 4.0, "copy_to_host_gb_per_s": 4.0},
        description="A rate under its number here fails, whatever its peers have: a PCIe link of a few lanes "
        "(IBM's Autopilot: 4 GB/s).",
    )
    needs_majority: bool = Field(
        default=False,
        description="Whether a band of bits that its peers cannot decide yet keeps a burn-in from passing.",
    )
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
        description="Metrics that must not have changed during a burn-in.",
    )
    deadline_s: Seconds = Field(900.0, description="How long one may run before the order is given again.")
    tries_max: Annotated[int, Field(ge=1, le=100)] = Field(
        3, description="How often an order is given before it is ABANDONED, with an incident."
    )
    again_s: Seconds = Field(
        3600.0, description="How long after an ABANDONED burn-in an UNPROVEN GPU gets its next order by rule."
    )
    requested_by: tuple[Name, ...] = Field(
        default=("mmu_fault_repeats", "sm_exception_repeats", "copy_engine_repeats", "ecc_history"),
        strict=False,
        description="Detectors whose findings order a burn-in of a GPU that works, one for each finding, when it is "
        "free: repetitions after which NVIDIA asks for a diagnosis, and lifetime memory errors that no "
        "agent observed.",
    )
    needed_after: tuple[Name, ...] = Field(
        default=(
            "clock_events",
            "throttle_seconds",
            "temperature",
            "thermal_margin",
            "pcie_link",
            "pcie_replays",
            "pcie_errors",
            "nvlink_crc",
            "nvlink_windows",
            "nvlink_rises",
            "link_bit_repeats",
            "corrected_remaps",
            "peers",
        ),
        strict=False,
        description="Detectors whose findings show only under load. A GPU that is SUSPECT by one of severity "
        "DEGRADED or worse gets a burn-in as soon as it is free. It returns to its standing before once "
        "such a burn-in, begun after the newest of them, has passed: time alone does not bring it back. "
        "If the burn-in is ABANDONED, time counts again.",
    )
    needed_after_xids: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] = Field(
        default=(94, *range(144, 151)),
        strict=False,
        description="The same for these XIDs: a contained memory error, whose row is to be remapped, and the NVLink "
        "errors of Blackwell.",
    )
    polls_per_s: Annotated[float, Field(gt=0, le=10_000, strict=False)] = Field(
        20.0, description="How often all agents together ask for orders; each asks at least once a minute."
    )


class CohortPolicy(StrictModel):
    """The rules for the GPUs that may be mixed in one gang."""

    attributes: tuple[Name, ...] = Field(
        default=(
            "model",
            "memory_bytes",
            "compute_capability",
            "driver_version",
            "cuda_version",
            "vbios_version",
            *LINKS,
        ),
        min_length=1,
        strict=False,
        description="The attributes that must be equal: model, memory_bytes, compute_capability, driver_version, "
        "cuda_version, vbios_version, gsp_firmware_version, inforom_version, board_part_number, "
        "power_limit_w, ecc_enabled, persistence_enabled, application_clock_mhz, pcie_max_generation, "
        "pcie_max_width, nvlink_links, nvlink_mb_per_s, kernel_release, nic_firmware, nic_driver, "
        "nic_rate, network or fabric_clique. An attribute that an agent does not report is presumed to be that of "
        "all others of the model, and unknown where those differ; a link's (nvlink_links, nvlink_mb_per_s, "
        "pcie_max_generation, pcie_max_width, nic_rate) that of most. Another list moves GPUs to other "
        "cohorts. A tier may name fewer: `tiers.NAME.homogeneity`.",
    )
    tolerance: Fraction = Field(
        0.05, description="A figure of a burn-in that is further from its cohort's median marks an outlier."
    )

    @model_validator(mode="after")
    def _attributes_are_known(self, info: ValidationInfo) -> Self:
        """`attributes` names no other than these."""
        unknown = [name for name in self.attributes if name not in COHORT_ATTRIBUTES]
        if unknown and not is_stored(info):
            accepted = ", ".join(COHORT_ATTRIBUTES)
            raise ValueError(f"attributes: nothing is known of {', '.join(unknown)}; accepted are {accepted}")
        return self


class HealthPolicy(StrictModel):
    """The rules by which GPUs are judged, taken out, repaired and proved."""

    evidence: EvidencePolicy = Field(default_factory=EvidencePolicy)
    score: ScorePolicy = Field(default_factory=ScorePolicy)
    standing: StandingPolicy = Field(default_factory=StandingPolicy)
    repair: RepairPolicy = Field(default_factory=RepairPolicy)
    breaker: BreakerPolicy = Field(default_factory=BreakerPolicy)
    clock_events: ClockEventPolicy = Field(default_factory=ClockEventPolicy)
    row_remap: RowRemapPolicy = Field(default_factory=RowRemapPolicy)
    detectors: DetectorsPolicy = Field(default_factory=DetectorsPolicy)
    warm_up: WarmUpPolicy = Field(default_factory=WarmUpPolicy)
    rule_cordon: RuleCordonPolicy = Field(default_factory=RuleCordonPolicy)
    burn_in: BurnInPolicy = Field(default_factory=BurnInPolicy)
    cohort: CohortPolicy = Field(default_factory=CohortPolicy)
    peers: PeerPolicy = Field(default_factory=PeerPolicy)

    @model_validator(mode="after")
    def _weights_are_of_detectors(self, info: ValidationInfo) -> Self:
        """`score.weights_of` names no other than the rules in `detectors`, `peers` and `burn_in`."""
        known = {*DetectorsPolicy.model_fields, "peers", "burn_in"}
        unknown = sorted(self.score.weights_of.keys() - known)
        if unknown and not is_stored(info):
            accepted = ", ".join(sorted(known))
            raise ValueError(f"score.weights_of: there is no detector {', '.join(unknown)}; accepted are {accepted}")
        return self
