"""Hosts that may run a preflight: which could check a job, and which of them are busy with others."""

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from control.attempts.mapping import job_request
from control.fleet.cordons import those_that_stand
from control.placement.pending_jobs import nodes_at_fault
from muster.db.models import Cordon, Gpu, Job, Node, PlacementPreflight
from muster.db.queries.effective_standing import effective_standing
from muster.db.queries.residency import residencies
from muster.domain.ids import NodeId, TenantId
from muster.domain.job.request import ENVIRONMENT, GIT
from muster.domain.residency import ANY, Residency
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Contact, JobState
from muster.wire.host import PACKAGES, SOURCE_PACKAGES
from scheduler.solve.job_rules import labels_of

PREFLIGHTS: Final = "look"
"""Capability that hosts with preflight report."""
MOST_BUILDS: Final = 4
"""Preflights at once on a host that may build an environment, of as many tenants."""
_OF_BUILDERS: Final = frozenset({PACKAGES, SOURCE_PACKAGES})


class BusyHosts:
    """Hosts that take no further preflight now.

    A check takes seconds, and a host runs one at a time. A build may take minutes. It delays no check, and it delays a
    build of another tenant only where a host runs ``MOST_BUILDS``. A host ends what it runs for a job that waits no
    more with its next heartbeat.
    """

    def __init__(self, session: Session, now: datetime) -> None:
        self._checking = set[NodeId]()
        self._building: dict[NodeId, set[TenantId]] = {}
        query = select(PlacementPreflight.node_id, Job).join(Job, Job.id == PlacementPreflight.job_id)
        for node_id, job in session.execute(query.where(PlacementPreflight.is_open(now), Job.state == JobState.QUEUED)):
            self.take(node_id, job)

    def of(self, job: Job) -> AbstractSet[NodeId]:
        """Return the hosts that take none of this job."""
        if not builds(job):
            return self._checking
        tenant_id = TenantId(job.tenant_id)
        return {
            node_id
            for node_id, tenants in self._building.items()
            if tenant_id in tenants or len(tenants) >= MOST_BUILDS
        }

    def take(self, node_id: NodeId, job: Job) -> None:
        if builds(job):
            self._building.setdefault(node_id, set()).add(TenantId(job.tenant_id))
        else:
            self._checking.add(node_id)


def builds(job: Job) -> bool:
    """Return whether the preflight has to make something that the job needs."""
    return num_builds(job) > 0


def num_builds(job: Job) -> int:
    """Return how many things it has to make: the bundle of a commit, the environment of a lock."""
    request = job_request(job)
    return int(request.awaits_bundle) + int(ENVIRONMENT in request.capabilities)


class _Host(NamedTuple):
    """A host in contact without a cordon. ``knows``: its capabilities; ``num_gpus``: the ones that are not out."""

    name: str
    knows: frozenset[str]
    num_gpus: int
    labels: Mapping[str, str]


class AbleHosts:
    """Hosts that may check each job: in contact, not cordoned, with enough GPUs that are not out, and able to.

    They are at the sites of its tenant's residency rule: the check fetches the tenant's content to the host.
    """

    def __init__(self, session: Session, waiting: Sequence[Job], now: datetime) -> None:
        num_usable = (
            select(func.count())
            .where(Gpu.node_id == Node.id, effective_standing(now).not_in(OUT_OF_SERVICE))
            .scalar_subquery()
        )
        is_cordoned = exists().where(Cordon.node_id == Node.id, those_that_stand(now))
        query = select(Node.id, Node.name, Node.capabilities, num_usable, Node.labels).where(
            Node.contact == Contact.LIVE, Node.capabilities.contains([PREFLIGHTS]), ~is_cordoned
        )
        self._hosts = {
            node_id: _Host(name, frozenset(knows), num_gpus, labels)
            for node_id, name, knows, num_gpus, labels in session.execute(query.order_by(Node.id))
        }
        self._residencies = residencies(session) if self._hosts else {}
        self._at_fault = nodes_at_fault(session, [job.id for job in waiting])
        self._busy = BusyHosts(session, now)

    def name_of(self, node_id: NodeId) -> str:
        """Return the host's name; its id, if it may check nothing now."""
        host = self._hosts.get(node_id)
        return node_id if host is None else host.name

    def busy(self, job: Job) -> Collection[NodeId]:
        """Return the hosts that take no preflight of this job now."""
        return self._busy.of(job)

    def are_all_busy(self, job: Job) -> bool:
        return bool(self._hosts) and self._hosts.keys() <= self._busy.of(job)

    def residency(self, job: Job) -> Residency:
        return self._residencies.get(job.tenant_id, ANY)

    def are_all_outside(self, job: Job) -> bool:
        """Return whether the residency rule of its tenant, and nothing else, leaves no host that may check it."""
        rule = self.residency(job)
        return bool(self._hosts) and not any(rule.has_site(host.labels) for host in self._hosts.values())

    def take(self, node_id: NodeId, job: Job) -> None:
        self._busy.take(node_id, job)

    def knows_how(self, job: Job) -> bool:
        """Return whether a host knows what the job needs, whether or not it has the GPUs."""
        words = frozenset(job_request(job).capabilities)
        return any(words <= host.knows for host in self._hosts.values())

    def of(self, job: Job) -> list[NodeId]:
        """Return its hosts; for a job with an environment the ones first that can build the most."""
        request, avoided = job_request(job), self._at_fault.get(job.id, frozenset())
        labels = labels_of(request.node_labels, self.residency(job).sites)
        words = frozenset([*request.capabilities, *([GIT] if request.awaits_bundle else [])])
        able = [
            node_id
            for node_id, host in self._hosts.items()
            if words <= host.knows
            and host.num_gpus >= request.shape.gpus_per_node
            and labels.admits(host.labels.items())
        ]
        if builds(job):
            able.sort(key=lambda node_id: len(_OF_BUILDERS & self._hosts[node_id].knows), reverse=True)
        blameless = [node_id for node_id in able if node_id not in avoided]
        # Where each is at fault, what has to be built is built by one of them: without it the job would never start.
        return blameless or (able if builds(job) else [])
