"""The policy: the versioned document that holds every number and rule. Defaults are the settled numbers."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import Field, ValidationInfo, model_validator

from muster.domain.policy.attention import AttentionPolicy
from muster.domain.policy.former_keys import with_present_keys
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.placement import PlacementPolicy
from muster.domain.policy.quantities import Days, Seconds
from muster.domain.policy.queue import QueuePolicy
from muster.domain.policy.recovery import RecoveryPolicy
from muster.domain.policy.start import PAIRWISE_LATE_S, PairwisePolicy
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


class TenantLimits(StrictModel):
    """The limits of what one tenant submits, without the tenants below it; a job beyond one is answered with 429.

    The defaults are far beyond a real tenant: in the Philly trace (82,247 jobs of 15 groups) the busiest group had 755
    jobs open at once, and submitted 98 in one minute.
    """

    open_jobs: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        2_000, description="Jobs that have not ended. A cycle of the scheduler reads at most 10,000 pending jobs."
    )
    stored_bytes: Annotated[int, Field(ge=1024, le=1 << 40)] = Field(
        64 << 20,
        description="Bytes of the specifications of these jobs, with programs and environments: on average 32 KiB for "
        "each of 2,000.",
    )
    submissions_per_minute: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        600, description="Jobs that it may submit at once, and in each minute after that."
    )


class AttemptLimitPolicy(StrictModel):
    """The limits on what the program of one attempt may store. What is beyond them is counted and left out."""

    events: Annotated[int, Field(ge=100, le=10_000_000)] = Field(
        10_000, description="Events by its program's reports, such as checkpoints, warnings and failed saves."
    )
    events_per_hour: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        1_000,
        description="So many more for each hour since its placement. A checkpoint is charged with six, so this is one "
        "each 22 s.",
    )
    checkpoints: Annotated[int, Field(ge=512, le=1_000_000)] = Field(
        5_000,
        description="Checkpoints that are recorded. Beyond, the oldest whose files were removed are deleted; if none "
        "is, further ones are not recorded. A resume finds them in their store.",
    )
    steps: Annotated[int, Field(ge=1_000, le=100_000_000)] = Field(
        2_000_000, description="Steps, a row each. Later ones are only in the thinned history of each rank."
    )
    log_bytes: Annotated[int, Field(ge=65_536, le=1 << 40)] = Field(
        1 << 30, description="The output of all its ranks together. A line states where it was cut."
    )
    late_reports_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = Field(
        86_400.0,
        description="The time after its end for which last lines and reports of hosts that were cut off are stored.",
    )


class LimitPolicy(StrictModel):
    """The limits of one request, page, stream, address and tenant.

    An API process reads `json_body_bytes`, `json_depth`, `joining_*` and the bounds of connections, requests and
    streams when it starts.
    """

    json_body_bytes: Annotated[int, Field(ge=1024, le=64 << 20)] = Field(
        1 << 20, description="The largest JSON body that is read; a larger one is answered with 413."
    )
    json_depth: Annotated[int, Field(ge=4, le=256)] = Field(
        32, description="Levels of nesting in a JSON body; a deeper one is refused."
    )
    page_items: Annotated[int, Field(ge=1, le=1000)] = Field(
        200, description="Items of a page. Not applied in this release: each list names its own limit in OpenAPI."
    )
    log_bytes_per_stream: Annotated[int, Field(ge=4096, le=1 << 30)] = Field(
        8 << 20,
        description="How much of each stream (stdout, stderr) of each rank of an attempt is kept; of a longer one "
        "its last 16 KiB too.",
    )
    idempotency_hours: Annotated[int, Field(ge=24, le=720)] = Field(
        24, description="For how long an idempotency key is known; a repetition within it has no second effect (I12)."
    )
    joining_burst: Annotated[int, Field(ge=1, le=100_000)] = Field(
        120, description="Requests to enrol and for a node's token that one address may send at once."
    )
    joining_per_s: Annotated[float, Field(ge=0.01, le=10_000, strict=False)] = Field(
        4.0, description="Requests a second that it may send from then on; more are answered with 429."
    )
    connections: Annotated[int, Field(ge=16, le=1_000_000)] = Field(
        32_768, description="Connections that an API process holds open at once; a further one is answered with 503."
    )
    connections_per_address: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        4_096,
        description="Connections of one address among them; a further one is answered with 429. Proxies that "
        "`api_trusted_proxies` names have no such limit.",
    )
    attempt: AttemptLimitPolicy = Field(default_factory=AttemptLimitPolicy)
    requests_per_key: Annotated[int, Field(ge=1, le=1_000)] = Field(
        24, description="Requests of one key or session that are answered at once; a further one is answered with 429."
    )
    streams_per_key: Annotated[int, Field(ge=1, le=100_000)] = Field(
        64, description="Streams of one key or person that an API process holds open at once."
    )
    streams_per_tenant: Annotated[int, Field(ge=1, le=100_000)] = Field(
        256, description="Streams of one tenant that an API process holds open at once."
    )
    tenant: TenantLimits = Field(default_factory=TenantLimits)


class RetentionPolicy(StrictModel):
    """The time for which records of the past are kept. Jobs, attempts and the audit chain are kept permanently."""

    events_days: Days = Field(90, description="Events.")
    outbox_days: Days = Field(7, description="Messages that were sent or abandoned.")
    logs_days: Days = Field(30, description="The output of the ranks of jobs.")
    telemetry_days: Days = Field(30, description="Readings, gaps and judged signals. Evidence is kept.")


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


class CheckpointIntervalPolicy(StrictModel):
    """The interval of checkpoints (`checkpoint_every="auto"`), and the expected failure rate of GPUs.

    The interval is Young's and Daly's for the measured stall and the attempt's number of GPUs. The failure rate is the
    fleet's own record, and the expectation here before there is one.
    """

    min_s: Seconds = Field(30.0, description="The shortest interval.")
    max_s: Seconds = Field(3600.0, description="The longest interval.")
    window_days: Days = Field(28, description="How far back the fleet's record goes.")
    prior_gpu_hours_per_failure: Annotated[float, Field(gt=0, le=1e9, strict=False)] = Field(
        50_000.0,
        description="The expected GPU-hours between failures. Llama 3: 419 in 54 days of 16,384 GPUs, one in 50,700; "
        "Meta's RSC-1 and RSC-2: one in 29,500 and 82,100.",
    )
    prior_failures: Annotated[float, Field(gt=0, le=1e6, strict=False)] = Field(
        0.1,
        description="The weight of that expectation, as a number of the fleet's own failures. It is small, so that "
        "the record of a worse or better fleet soon counts more.",
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        """`min_s` ≤ `max_s`."""
        if self.max_s < self.min_s:
            raise ValueError("min_s must not exceed max_s")
        return self


class StoragePolicy(StrictModel):
    """The rule by which failed saves count as a fault of the storage, of one host, or of the job's own rights."""

    min_failures: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2, description="An incident opens after so many failed saves at a place without a successful one between them."
    )
    min_hosts: Annotated[int, Field(ge=2, le=1_000)] = Field(
        2,
        description="A place that hosts share is at fault once saves of so many hosts failed there; with fewer the "
        "hosts are at fault.",
    )
    min_jobs_refused: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2, description="A refusal counts as the job's own fault until so many jobs are refused at one place."
    )
    clears_after_saves: Annotated[int, Field(ge=1, le=1_000)] = Field(
        2,
        description="So many successful saves clear a host's fault at a place: saves of the same job from that host "
        "to any place, of another job at the same place, and, for a shared place that was full or "
        "read-only, of any host.",
    )
    window_s: Seconds = Field(
        86_400.0, description="Failures of a job on a host at a place no longer count once the last one is so long ago."
    )


class ScrubPolicy(StrictModel):
    """The rule by which the running job reads stored checkpoints again in the background."""

    interval_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = Field(
        86_400.0, description="A checkpoint is read again so long after it was written or last read; 0: never."
    )
    bytes_per_s: Annotated[float, Field(ge=1_000, le=1e12, strict=False)] = Field(
        50e6,
        description="At most so many bytes of a job's checkpoints are read a second, and none while one is saved.",
    )


class TrainingPolicy(StrictModel):
    """The rules by which checkpoints are good, kept or never used again, and the interval at which they are made."""

    good_after_steps: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20, description="Steps after which a VERIFIED checkpoint is GOOD."
    )
    taint_margin_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        60.0,
        description="The effects of a correctness fault may have begun so long before it was seen: checkpoints since "
        "then are TAINTED.",
    )
    fault_detection_s: Seconds = Field(
        600.0, description="How late a fault may be found; the newest checkpoint that is older than that is kept."
    )
    last_save_retry_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = Field(
        300.0,
        description="For how long a program's last save is tried again when it fails, with pauses of 1 s that double "
        "up to 30 s. Its GPUs wait meanwhile. Then the attempt ends as `save_failed`. 0: it is tried once.",
    )
    checkpoint_interval: CheckpointIntervalPolicy = Field(default_factory=CheckpointIntervalPolicy)
    scrub: ScrubPolicy = Field(default_factory=ScrubPolicy)
    storage: StoragePolicy = Field(default_factory=StoragePolicy)

    @model_validator(mode="after")
    def _one_from_before_a_fault_stays(self) -> Self:
        """`taint_margin_s` < `fault_detection_s`: a fault leaves a checkpoint from before it."""
        if self.fault_detection_s <= self.taint_margin_s:
            raise ValueError("hold_s must exceed taint_margin_s, or a fault leaves no checkpoint from before it")
        return self


class SuspicionPolicy(StrictModel):
    """A program is suspected when its attempts end with one GPU-side symptom on so many disjoint sets of GPUs.

    A gang of thousands of GPUs loses some each day without any fault of its program: for such gangs set more sets, or
    a shorter window.
    """

    disjoint_sets: Annotated[int, Field(ge=2, le=6)] = Field(
        3, description="A job is HELD after one symptom on so many sets of GPUs without a common GPU."
    )
    window_s: Seconds = Field(86_400.0, description="The time within which those attempts ended.")


def _default_tiers() -> dict[str, TierPolicy]:
    return {
        "reserved": TierPolicy(priority=300),
        "on_demand": TierPolicy(priority=200),
        "spot": TierPolicy(priority=100, notice_s=120.0, standings=("HEALTHY", "PROBATION")),
    }


class Policy(StrictModel):
    """The whole document. A field that it does not name has its default."""

    contact: ContactPolicy = Field(default_factory=ContactPolicy)
    dispatch: DispatchPolicy = Field(default_factory=DispatchPolicy)
    tiers: dict[Name, TierPolicy] = Field(
        default_factory=_default_tiers, min_length=1, description="Name of a tier → its class of service."
    )
    queue: QueuePolicy = Field(default_factory=QueuePolicy)
    placement: PlacementPolicy = Field(default_factory=PlacementPolicy)
    reclaim: ReclaimPolicy = Field(default_factory=ReclaimPolicy)
    limits: LimitPolicy = Field(default_factory=LimitPolicy)
    retention: RetentionPolicy = Field(default_factory=RetentionPolicy)
    training: TrainingPolicy = Field(default_factory=TrainingPolicy)
    evacuation: EvacuationPolicy = Field(default_factory=EvacuationPolicy)
    elastic: ElasticPolicy = Field(default_factory=ElasticPolicy)
    recovery: RecoveryPolicy = Field(default_factory=RecoveryPolicy)
    suspicion: SuspicionPolicy = Field(default_factory=SuspicionPolicy)
    attention: AttentionPolicy = Field(default_factory=AttentionPolicy)
    health: HealthPolicy = Field(default_factory=HealthPolicy)

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
