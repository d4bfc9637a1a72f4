"""The policy: the versioned document that holds every number and rule. Defaults are the settled numbers."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import Field, ValidationInfo, model_validator

from muster.domain.policy.attention import AttentionPolicy
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.environment import EnvironmentPolicy
from muster.domain.policy.former_keys import with_present_keys
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.limits import LimitPolicy
from muster.domain.policy.notifications import NotificationPolicy
from muster.domain.policy.objectives import FindingPolicy, ObjectivePolicy
from muster.domain.policy.placement import PlacementPolicy
from muster.domain.policy.quantities import Days, Seconds
from muster.domain.policy.queue import QueuePolicy
from muster.domain.policy.recovery import RecoveryPolicy
from muster.domain.policy.start import PAIRWISE_LATE_S, PairwisePolicy
from muster.domain.policy.tiers import ReclaimPolicy, TierPolicy, default_tiers
from muster.domain.policy.training import TrainingPolicy
from muster.domain.policy.watch import WatchPolicy
from muster.domain.strict import Name, StrictModel, is_stored

QUICK_CHECK_START_S: Final = 30.0
"""Extra time of a quick check on a host, in addition to its seconds of computing, for torch to start."""


class ContactPolicy(StrictModel):
    """The times after which a host counts as silent or lost, and the lengths of its leases."""

    heartbeat_s: Seconds = Field(10.0, description="The interval at which a host's worker sends heartbeats.")
    heartbeat_jitter_fraction: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.1,
        description="A heartbeat is sent up to this fraction of `heartbeat_s` earlier or later, so that hosts that "
        "started together drift apart.",
    )
    silent_after_s: Seconds = Field(
        30.0, description="Without a heartbeat for so long a node is SILENT: it gets no new work."
    )
    lost_after_s: Seconds = Field(
        60.0, description="Without a heartbeat for so long a node is LOST, and so are its attempts."
    )
    agent_lease_s: Seconds = Field(
        900.0,
        description="How long a host without an answer lets its programs run, counted from the sending of its last "
        "heartbeat that was answered. Then it ends them itself.",
    )
    server_lease_extra_s: Seconds = Field(
        60.0,
        description="Extra time that the server waits after the agent's lease before it treats a lost attempt as "
        "ended.",
    )
    kill_grace_s: Seconds = Field(30.0, description="How long a program that is past its lease may take to end.")
    lease_margin_s: Seconds = Field(
        10.0,
        description="Time for clocks and delays, in addition to `kill_grace_s`; both must fit into "
        "`server_lease_extra_s` (I13).",
    )
    no_expiry_after_start_s: Seconds = Field(
        300.0, description="For so long after the control plane takes heartbeats again no lease ends."
    )

    @property
    def server_lease_s(self) -> float:
        return self.agent_lease_s + self.server_lease_extra_s

    @model_validator(mode="after")
    def _leases_are_safe(self) -> Self:
        """`kill_grace_s` + `lease_margin_s` ≤ `server_lease_extra_s`.

        `heartbeat_s` × (1 + `heartbeat_jitter_fraction`) < `silent_after_s` < `lost_after_s` < `agent_lease_s`.
        """
        if self.kill_grace_s + self.lease_margin_s > self.server_lease_extra_s:
            raise ValueError("kill_grace_s + lease_margin_s must not exceed server_lease_extra_s (I13)")
        latest_beat_s = self.heartbeat_s * (1 + self.heartbeat_jitter_fraction)
        if not latest_beat_s < self.silent_after_s < self.lost_after_s < self.agent_lease_s:
            raise ValueError(
                "heartbeat_s × (1 + heartbeat_jitter_fraction) < silent_after_s < lost_after_s < agent_lease_s "
                "must hold"
            )
        return self


class DispatchPolicy(StrictModel):
    """The times of wake-ups, new placements, preflights, and pauses between attempts."""

    wake_again_s: Seconds = Field(
        15.0, description="After so long a host gets another wake-up for an attempt that it has not claimed."
    )
    place_again_s: Seconds = Field(
        60.0, description="After so long an unclaimed attempt ends as `launch_failed`, and the job is placed again."
    )
    ready_within_s: Seconds = Field(
        120.0,
        description="How long a host of a gang may take from its claim until it is ready to start. Then the attempt "
        "ends as `preflight_failed`, and no host has started.",
    )
    preflight_from_nodes: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="A job with so many hosts or more gets a preflight on one host before it takes any GPU: script, "
        "environment, secrets, mounts, disk. 1: every job; 2: gangs. Null: none; hosts check while they "
        "have its GPUs.",
    )
    preflight_within_s: Seconds = Field(
        30.0,
        description="The longest time for that preflight on one host. Then another host is asked, three at most, "
        "then none.",
    )
    dataset_check_s: Seconds = Field(
        20.0,
        description="How long a host may check the datasets that a job names, before it is placed or starts; never "
        "longer than half of `preflight_within_s` or `ready_within_s`.",
    )
    disk_free_bytes: Annotated[int, Field(ge=0, le=1 << 50)] = Field(
        1 << 30,
        description="The free space that a host needs where a gang's program writes its output and its checkpoints; "
        "with less it is not ready.",
    )
    pairwise: PairwisePolicy = Field(default_factory=PairwisePolicy)
    retry_backoff_s: Seconds = Field(
        30.0, description="The pause before the next attempt after a failure; it doubles with each of the same kind."
    )
    retry_backoff_max_s: Seconds = Field(60.0, description="The longest such pause.")
    gpu_fault_window_s: Seconds = Field(
        60.0,
        description="A fault measured on a rank's GPU within so long of the rank's end counts as the cause of that "
        "end. A rank that only missed another may have waited for long: for it any fault since the "
        "placement counts.",
    )
    launch_failures_before_hold: Annotated[int, Field(ge=1, le=100)] = Field(
        5,
        description="After so many failed launches in a row a job is HELD. Faults of GPUs or of the network that end "
        "its attempts without a newer checkpoint between them count as well: none of them costs a restart.",
    )
    stop_grace_s: Seconds = Field(
        30.0, description="The time between SIGTERM and SIGKILL, for a job that does not set its own `stop_grace_s`."
    )


class RetentionPolicy(StrictModel):
    """The time for which records of the past are kept. Jobs, attempts and the audit chain are kept permanently."""

    events_days: Days = Field(90, description="Events.")
    outbox_days: Days = Field(7, description="Messages that were sent or abandoned.")
    logs_days: Days = Field(30, description="The output of the ranks of jobs, which is dropped by whole days (UTC).")
    telemetry_days: Days = Field(30, description="Readings, gaps and judged signals. Evidence is kept.")
    verdicts_days: Days = Field(
        365,
        description="Verdicts on attempts that have ended. Their evidence is kept, and a false alarm for as long as it "
        "counts (`watch.false_alarms_days`).",
    )
    steps_days: Days = Field(
        90,
        description="All training steps of an attempt, from its end on. After that it keeps about 2,000 of them, "
        "evenly over its length.",
    )
    ledger_entries_days: Days = Field(
        400, description="Entries of the ledger: the time of each GPU by attempt, with the evidence of each loss."
    )
    ledger_facts_days: Days = Field(
        1_830, description="Sums of the ledger's entries by hour and day, which statements and figures are made of."
    )
    rollups_recent_hours: Annotated[int, Field(ge=1, le=720)] = Field(
        48,
        description="Health and capacity of racks, cohorts, sites, models, tenants and the fleet, every five minutes. "
        "After that the first of each hour stays. By node only the newest and the first of each hour are kept.",
    )
    rollups_hourly_days: Days = Field(
        14, description="Health and capacity of each hour. After that the first of each day (UTC) stays."
    )
    rollups_days: Days = Field(400, description="Health and capacity of each day.")
    figures_days: Days = Field(400, description="Indicators by hour. Indicators by day are kept permanently.")


class EvacuationPolicy(StrictModel):
    """The time that a job has to leave a bad GPU, or a node that is drained."""

    grace_s: Seconds = Field(120.0, description="The time for a checkpoint before the job leaves.")
    correctness_grace_s: Seconds = Field(
        10.0, description="The time to end if results are in doubt, when nothing is worth saving."
    )


class ElasticPolicy(StrictModel):
    """The rule by which an elastic job grows.

    Growing costs a restart, so it happens neither soon nor for a small gain.
    """

    grow_after_s: Seconds = Field(
        300.0,
        description="No attempt is stopped to grow before it has run so long, so a job grows at most once in that "
        "time.",
    )
    min_gain_fraction: Annotated[float, Field(ge=0, le=10, strict=False)] = Field(
        0.1, description="A job grows by no less than this fraction of its hosts, and by at least one."
    )
    grace_s: Seconds = Field(
        120.0, description="The time for a checkpoint before the job continues with another number of hosts."
    )


class SuspicionPolicy(StrictModel):
    """A program is suspected when its attempts end with one GPU-side symptom on so many disjoint sets of GPUs.

    A gang of thousands of GPUs loses some each day without any fault of its program: for such gangs set more sets, or
    a shorter window.
    """

    disjoint_sets: Annotated[int, Field(ge=2, le=6)] = Field(
        3, description="A job is HELD after one symptom on so many sets of GPUs without a common GPU."
    )
    window_s: Seconds = Field(86_400.0, description="The time within which those attempts ended.")


class Policy(StrictModel):
    """The whole document. A field that it does not name has its default."""

    contact: ContactPolicy = Field(default_factory=ContactPolicy)
    dispatch: DispatchPolicy = Field(default_factory=DispatchPolicy)
    tiers: dict[Name, TierPolicy] = Field(
        default_factory=default_tiers, min_length=1, description="Name of a tier → its class of service."
    )
    queue: QueuePolicy = Field(default_factory=QueuePolicy)
    placement: PlacementPolicy = Field(default_factory=PlacementPolicy)
    reclaim: ReclaimPolicy = Field(default_factory=ReclaimPolicy)
    limits: LimitPolicy = Field(default_factory=LimitPolicy)
    retention: RetentionPolicy = Field(default_factory=RetentionPolicy)
    content: ContentPolicy = Field(default_factory=ContentPolicy)
    environment: EnvironmentPolicy = Field(default_factory=EnvironmentPolicy)
    training: TrainingPolicy = Field(default_factory=TrainingPolicy)
    evacuation: EvacuationPolicy = Field(default_factory=EvacuationPolicy)
    elastic: ElasticPolicy = Field(default_factory=ElasticPolicy)
    recovery: RecoveryPolicy = Field(default_factory=RecoveryPolicy)
    suspicion: SuspicionPolicy = Field(default_factory=SuspicionPolicy)
    attention: AttentionPolicy = Field(default_factory=AttentionPolicy)
    health: HealthPolicy = Field(default_factory=HealthPolicy)
    watch: WatchPolicy = Field(default_factory=WatchPolicy)
    objectives: ObjectivePolicy = Field(default_factory=ObjectivePolicy)
    notifications: NotificationPolicy = Field(default_factory=NotificationPolicy)
    findings: FindingPolicy = Field(default_factory=FindingPolicy)

    @model_validator(mode="before")
    @classmethod
    def _former_keys_are_read(cls, document: Any) -> Any:
        """Former names of keys are read as the present ones until 0.2.0."""
        return with_present_keys(document) if isinstance(document, Mapping) else document

    @model_validator(mode="after")
    def _quick_checks_end_in_time(self) -> Self:
        """`quick_check_s` of each tier + 30 s for its start < `dispatch.ready_within_s`."""
        longest_s = max(tier.quick_check_s for tier in self.tiers.values())
        if longest_s > 0 and longest_s + QUICK_CHECK_START_S >= self.dispatch.ready_within_s:
            raise ValueError(
                f"dispatch.ready_within_s must exceed each tier's quick_check_s + {QUICK_CHECK_START_S:.0f}, "
                "or its jobs never start"
            )
        return self

    @model_validator(mode="after")
    def _pairwise_checks_end_in_time(self) -> Self:
        """Quick check + `dispatch.pairwise.rounds_max` × (`pairwise_check_s` + 10 s) < `dispatch.ready_within_s`.

        This holds for each tier.
        """
        for name, tier in self.tiers.items():
            if tier.pairwise_check_s == 0:
                continue
            checked_s = tier.quick_check_s + QUICK_CHECK_START_S if tier.quick_check_s else 0.0
            longest_s = checked_s + self.dispatch.pairwise.rounds_max * (tier.pairwise_check_s + PAIRWISE_LATE_S)
            if longest_s >= self.dispatch.ready_within_s:
                raise ValueError(
                    "dispatch.ready_within_s must exceed a quick check and dispatch.pairwise.rounds_max × "
                    f"(pairwise_check_s + {PAIRWISE_LATE_S:.0f}), which of the tier {name} are {longest_s:g} s"
                )
        return self

    @model_validator(mode="after")
    def _homogeneity_is_of_cohorts(self, info: ValidationInfo) -> Self:
        """`homogeneity` of each tier names attributes of `health.cohort.attributes`."""
        for name, tier in self.tiers.items():
            strange = sorted(set(tier.homogeneity or ()) - set(self.health.cohort.attributes))
            if strange and not is_stored(info):
                raise ValueError(
                    f"homogeneity of the tier {name} names {', '.join(strange)}, which health.cohort.attributes "
                    "does not have: add it there, or remove it here"
                )
        return self

    def homogeneity(self, tier: str) -> frozenset[str] | None:
        """Return the attributes in which the GPUs of a gang of the tier must be equal; None: all that define cohorts.

        Raises:
            KeyError: as ``tier`` does.
        """
        asked = self.tier(tier).homogeneity
        return None if asked is None or set(asked) == set(self.health.cohort.attributes) else frozenset(asked)

    def tier(self, name: str) -> TierPolicy:
        """Return the tier's part of the policy. Raises ``KeyError`` for a tier that the policy does not define."""
        return self.tiers[name]


DEFAULT_POLICY: Final = Policy()
