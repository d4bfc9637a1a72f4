"""The policy: the versioned document that holds every number and rule. Defaults are the settled numbers."""

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from muster.domain.health_policy import HealthPolicy
from muster.domain.strict import Name, StrictModel

Seconds = Annotated[float, Field(gt=0, le=31_536_000, strict=False)]


class ContactPolicy(StrictModel):
    """When a host counts as silent and lost, and how long its leases hold."""

    heartbeat_s: Seconds = 10.0
    heartbeat_jitter_fraction: Annotated[float, Field(ge=0, le=0.5)] = 0.1
    silent_after_s: Seconds = 30.0
    lost_after_s: Seconds = 60.0
    agent_lease_s: Seconds = 900.0
    server_lease_extra_s: Seconds = 60.0
    kill_grace_s: Seconds = 30.0
    lease_margin_s: Seconds = 10.0
    no_expiry_after_start_s: Seconds = 300.0

    @property
    def server_lease_s(self) -> float:
        return self.agent_lease_s + self.server_lease_extra_s

    @model_validator(mode="after")
    def _leases_are_safe(self) -> Self:
        if self.kill_grace_s + self.lease_margin_s > self.server_lease_extra_s:
            raise ValueError("kill_grace_s + lease_margin_s must not exceed server_lease_extra_s (I13)")
        if not self.heartbeat_s < self.silent_after_s < self.lost_after_s < self.agent_lease_s:
            raise ValueError("heartbeat_s < silent_after_s < lost_after_s < agent_lease_s must hold")
        return self


class DispatchPolicy(StrictModel):
    """Ring again, place again, and back off between attempts."""

    ring_again_s: Seconds = 15.0
    place_again_s: Seconds = 60.0
    retry_backoff_s: Seconds = 30.0
    retry_backoff_max_s: Seconds = 60.0
    launch_failures_before_hold: Annotated[int, Field(ge=1, le=100)] = 5
    stop_grace_s: Seconds = 30.0


class TierPolicy(StrictModel):
    """One class of service. ``notice_s`` is None where a rule may never reclaim (I7).

    ``min_run_s``: no attempt of the tier is reclaimed before it has run that long (I9).
    """

    priority: Annotated[int, Field(ge=0, le=1000)]
    notice_s: Seconds | None = None
    min_run_s: Annotated[float, Field(ge=0, le=31_536_000, strict=False)] = 1800.0
    standings: tuple[str, ...] = Field(default=("HEALTHY",), strict=False)


class ReclaimPolicy(StrictModel):
    """How much reclaim may take (I9) and what an interrupted attempt is reckoned to lose.

    In any ``window_s`` a tenant loses at most ``cap_fraction`` of its peak of GPUs in that window, or its smallest
    running job where that is more. ``restart_cost_s``: seconds that each GPU of a victim loses beside its unsaved work.
    """

    cap_fraction: Annotated[float, Field(ge=0, le=1)] = 0.25
    window_s: Seconds = 3600.0
    restart_cost_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = 120.0


class LimitPolicy(StrictModel):
    """``joining_*``: requests to enrol and for a node's token, from one address, before which no key is asked for."""

    json_body_bytes: Annotated[int, Field(ge=1024, le=64 << 20)] = 1 << 20
    json_depth: Annotated[int, Field(ge=4, le=256)] = 32
    page_items: Annotated[int, Field(ge=1, le=1000)] = 200
    log_bytes_per_stream: Annotated[int, Field(ge=4096, le=1 << 30)] = 8 << 20
    idempotency_hours: Annotated[int, Field(ge=24, le=720)] = 24
    joining_burst: Annotated[int, Field(ge=1, le=100_000)] = 120
    joining_per_s: Annotated[float, Field(ge=0.01, le=10_000, strict=False)] = 4.0


class RetentionPolicy(StrictModel):
    """How long what explains the past is kept. Jobs, attempts and the audit chain are kept for ever."""

    events_days: Annotated[int, Field(ge=1, le=3650)] = 90
    outbox_days: Annotated[int, Field(ge=1, le=3650)] = 7
    logs_days: Annotated[int, Field(ge=1, le=3650)] = 30
    telemetry_days: Annotated[int, Field(ge=1, le=3650)] = 30


class EvacuationPolicy(StrictModel):
    """``grace_s``: for a checkpoint before a job leaves a bad GPU. ``correctness_grace_s``: where results are in doubt
    there is nothing to save, only to end.
    """

    grace_s: Seconds = 120.0
    correctness_grace_s: Seconds = 10.0


class TrainingPolicy(StrictModel):
    """``good_after_steps``: healthy steps after which a verified checkpoint counts as good.

    ``taint_margin_s``: how long before a correctness fault was seen its effects may have begun.
    ``hold_s``: how late a fault may be found; the newest checkpoint that is older than that is kept.
    """

    good_after_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    taint_margin_s: Annotated[float, Field(ge=0, le=86_400, strict=False)] = 60.0
    hold_s: Seconds = 600.0

    @model_validator(mode="after")
    def _one_from_before_a_fault_stays(self) -> Self:
        if self.hold_s <= self.taint_margin_s:
            raise ValueError("hold_s must exceed taint_margin_s, or a fault leaves no checkpoint from before it")
        return self


class SuspicionPolicy(StrictModel):
    """A program is suspected when its attempts end with one GPU-side symptom on so many disjoint sets of GPUs.

    ``window_s``: within which they ended. A gang of thousands of GPUs loses some by the day through no program's fault:
    who runs such gangs asks for more sets, or for a shorter window.
    """

    disjoint_sets: Annotated[int, Field(ge=2, le=6)] = 3
    window_s: Seconds = 86_400.0


def _default_tiers() -> dict[str, TierPolicy]:
    return {
        "reserved": TierPolicy(priority=300),
        "on_demand": TierPolicy(priority=200),
        "spot": TierPolicy(priority=100, notice_s=120.0, standings=("HEALTHY", "PROBATION")),
    }


class Policy(StrictModel):
    contact: ContactPolicy = Field(default_factory=ContactPolicy)
    dispatch: DispatchPolicy = Field(default_factory=DispatchPolicy)
    tiers: dict[Name, TierPolicy] = Field(default_factory=_default_tiers, min_length=1)
    reclaim: ReclaimPolicy = Field(default_factory=ReclaimPolicy)
    limits: LimitPolicy = Field(default_factory=LimitPolicy)
    retention: RetentionPolicy = Field(default_factory=RetentionPolicy)
    training: TrainingPolicy = Field(default_factory=TrainingPolicy)
    evacuation: EvacuationPolicy = Field(default_factory=EvacuationPolicy)
    suspicion: SuspicionPolicy = Field(default_factory=SuspicionPolicy)
    health: HealthPolicy = Field(default_factory=HealthPolicy)

    def tier(self, name: str) -> TierPolicy:
        """Raises ``KeyError`` for a tier that the policy does not define."""
        return self.tiers[name]


DEFAULT_POLICY: Final = Policy()
