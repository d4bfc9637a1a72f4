"""Fleets, jobs and running attempts for the tests of the scheduler, small and readable."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.policy.document import DEFAULT_POLICY, Policy
from muster.domain.states import Contact, Standing
from scheduler.model import GpuView, Parts, RunningAttempt, StandingReclaim, WaitingJob

FIT = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)
FACTS = st.builds(
    AdmissionFacts,
    standing=st.sampled_from(Standing),
    contact=st.sampled_from(Contact),
    is_cordoned=st.booleans(),
    is_assigned=st.booleans(),
    is_burning_in=st.booleans(),
    is_reclaimable_only=st.booleans(),
    is_mig_enabled=st.booleans(),
    override=st.none() | st.sampled_from(Standing),
)
MINUTE_MS = 60_000
NOW_MS = 1_000 * MINUTE_MS


def queueing(policy: Policy = DEFAULT_POLICY, **rules: Any) -> Policy:
    """The policy with other rules of the queue."""
    return policy.model_copy(update={"queue": policy.queue.model_copy(update=rules)})


def host(
    name: str,
    count: int,
    *,
    cohort: str = "h100",
    facts: AdmissionFacts = FIT,
    path: tuple[str, ...] = (),
    health_cost: int = 0,
) -> list[GpuView]:
    return [
        GpuView(GpuUuid(f"{name}-{slot}"), NodeId(name), slot, cohort, facts, path, health_cost)
        for slot in range(count)
    ]


def racks(free: Mapping[str, Iterable[int]], *, pods: Mapping[str, str] | None = None) -> list[GpuView]:
    """Racks of 8-GPU hosts by how many GPUs of each are free; a host is ``<rack>h<number>``."""
    gpus: list[GpuView] = []
    for rack, hosts in free.items():
        path = (rack,) if pods is None else (pods[rack], rack)
        for number, num_free in enumerate(hosts):
            views = host(f"{rack}h{number}", 8, path=path)
            gpus += hold(views, {view.uuid for view in views[num_free:]})
    return gpus


def hold(gpus: Iterable[GpuView], uuids: Iterable[str]) -> list[GpuView]:
    held = set(uuids)
    return [replace(gpu, facts=replace(gpu.facts, is_assigned=True)) if gpu.uuid in held else gpu for gpu in gpus]


def job(
    name: str,
    *,
    nodes: int = 1,
    gpus: int = 1,
    tier: str = "on_demand",
    at: int = 0,
    tenant: str = "waiter",
    required: str | None = None,
    preferred: str | None = None,
    keep: Parts = (),
) -> WaitingJob:
    return WaitingJob(
        JobId(name),
        1,
        tier,
        at,
        nodes,
        gpus,
        tenant_id=TenantId(tenant),
        required_level=required,
        preferred_level=preferred,
        keep=keep,
    )


def running(
    name: str,
    uuids: Iterable[str],
    *,
    tier: str = "spot",
    tenant: str = "owner",
    minutes: float = 120,
    saved_minutes: float | None = None,
    ends_minutes: float | None = None,
) -> RunningAttempt:
    """Started ``minutes`` ago, saved ``saved_minutes`` ago, ending in ``ends_minutes``."""
    return RunningAttempt(
        attempt_id=AttemptId(name),
        job_id=JobId(f"job-of-{name}"),
        tenant_id=TenantId(tenant),
        tier=tier,
        gpus=tuple(GpuUuid(uuid) for uuid in uuids),
        started_ms=NOW_MS - int(minutes * MINUTE_MS),
        saved_ms=None if saved_minutes is None else NOW_MS - int(saved_minutes * MINUTE_MS),
        ends_ms=None if ends_minutes is None else NOW_MS + int(ends_minutes * MINUTE_MS),
    )


def standing(victim: str, beneficiary: str, assigned: Iterable[str], *, in_s: int = 60) -> StandingReclaim:
    return StandingReclaim(
        AttemptId(victim), JobId(beneficiary), NOW_MS + in_s * 1000, tuple(GpuUuid(uuid) for uuid in assigned)
    )


def of_host(name: str, count: int = 8, start: int = 0) -> list[str]:
    return [f"{name}-{slot}" for slot in range(start, start + count)]
