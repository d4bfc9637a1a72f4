"""The planner's view of a scenario: its GPUs, pending and running jobs, and the work that is planned on its hosts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from health.standing.admission import AdmissionFacts
from muster.domain.ids import AttemptId, GpuUuid, JobId, NodeId, TenantId
from muster.domain.states import Contact, Standing
from scheduler.model import ElasticGang, GpuView, Parts, RunningAttempt, Shape, WaitingJob
from simulator.scenarios.document import Scenario
from simulator.scenarios.job_form import JobFields

_START_MS: Final = 946_684_800_000
"""Second 0 is the start of the year 2000, UTC: sentences contain dates."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The notice of a reclaim. ``arrives_ms``: when a heartbeat brings it to the victim."""

    given_ms: int
    deadline_ms: int
    arrives_ms: int


@dataclass(slots=True)
class Attempt:
    attempt_id: AttemptId
    job: JobFields
    parts: Parts
    started_ms: int
    saved_ms: int | None
    ends_ms: int | None
    stops_ms: int | None = None
    leaves_ms: int | None = None
    keeps: tuple[GpuUuid, ...] = ()
    notice: Notice | None = None
    """The notice that has not arrived yet."""
    is_reclaimed: bool = False
    """Whether a host has received the notice of a reclaim."""

    @property
    def gpus(self) -> tuple[GpuUuid, ...]:
        return tuple(uuid for _, uuids in self.parts for uuid in uuids)

    @property
    def wall_ms(self) -> int | None:
        """The known latest end; None if there is none."""
        wall_s = self.job.wall_time_s
        known = [self.stops_ms, None if wall_s is None else self.started_ms + int(wall_s * 1000)]
        return min((moment for moment in known if moment is not None), default=None)

    @property
    def over_ms(self) -> int | None:
        """The time at which it ends, by itself or by a request; None if unknown."""
        known = (self.ends_ms, self.leaves_ms, self.wall_ms)
        return min((moment for moment in known if moment is not None), default=None)

    def leave_by(self, stops_ms: int, now_ms: int) -> None:
        """Record a stop request with that deadline; it leaves once it has saved."""
        saves_s = self.job.leaves_in_s
        self.stops_ms = stops_ms
        self.leaves_ms = stops_ms if saves_s is None else min(now_ms + round(saves_s * 1000), stops_ms)

    def receive(self, notice: Notice, now_ms: int) -> None:
        """Receive the notice: from now on the attempt leaves in any case."""
        self.notice, self.is_reclaimed = None, True
        if self.stops_ms is None or self.stops_ms > notice.deadline_ms:
            self.leave_by(max(notice.deadline_ms, now_ms), notice.given_ms)


@dataclass(frozen=True, slots=True)
class Window:
    """Planned work. ``closes_ms``: when the jobs there get their stop request."""

    nodes: frozenset[NodeId]
    closes_ms: int
    starts_ms: int
    until_ms: int


def ms_of(seconds: float) -> int:
    return _START_MS + round(seconds * 1000)


def seconds_of(at_ms: int) -> float:
    return (at_ms - _START_MS) / 1000


def windows_of(scenario: Scenario) -> Iterator[Window]:
    for one in scenario.maintenance:
        inside = [each for each in scenario.topology.nodes if one.domain and any(each.domains_of(one.domain))]
        nodes = [name for each in inside for name in each.each()]
        starts_ms = ms_of(one.starts_s)
        until_ms = starts_ms + round(one.lasts_s * 1000)
        named = frozenset(NodeId(name) for name in (one.nodes or nodes))
        yield Window(named, starts_ms - round(one.lead_s * 1000), starts_ms, until_ms)


def views_of(scenario: Scenario) -> Iterator[GpuView]:
    facts = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)
    for nodes in scenario.topology.nodes:
        labels = tuple(sorted(nodes.attributes.items()))
        for name in nodes.each():
            for slot in range(nodes.gpus):
                uuid = GpuUuid(f"{name}/{slot}")
                yield GpuView(uuid, NodeId(name), slot, nodes.model, facts, nodes.path, labels=labels)


def waiting_of(job: JobFields, queued_ms: int, nodes: int, keep: Parts) -> WaitingJob:
    is_elastic = job.min_nodes is not None or job.max_nodes is not None
    return WaitingJob(
        job_id=JobId(job.name),
        version=1,
        tier=job.tier,
        queued_ms=queued_ms,
        nodes=nodes,
        gpus_per_node=job.gpus_per_node,
        tenant_id=TenantId(job.tenant),
        required_level=job.required,
        preferred_level=job.preferred,
        keep=keep,
        min_nodes=(job.min_nodes or nodes) if is_elastic else None,
        max_nodes=(job.max_nodes or nodes) if is_elastic else None,
        expected_s=job.wall_time_s,
    )


def running_of(name: str, one: Attempt) -> RunningAttempt:
    elastic = None
    if one.job.min_nodes is not None or one.job.max_nodes is not None:
        least, most = one.job.min_nodes or len(one.parts), one.job.max_nodes or len(one.parts)
        elastic = ElasticGang(one.parts, least, most, one.job.gpus_per_node, one.job.required, one.job.preferred)
    return RunningAttempt(
        attempt_id=one.attempt_id,
        job_id=JobId(name),
        tenant_id=TenantId(one.job.tenant),
        tier=one.job.tier,
        gpus=one.gpus,
        started_ms=one.started_ms,
        saved_ms=one.saved_ms,
        ends_ms=one.wall_ms,
        is_stopping=one.stops_ms is not None,
        elastic=elastic,
        requested=Shape(len(one.parts), one.job.gpus_per_node, one.job.required),
    )
