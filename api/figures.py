"""Gauges that are counted when somebody looks: what waits where. Low cardinality: states and nothing else."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import Attempt, Event, Gpu, Incident, Job, Node, OutboxMessage
from muster.domain.errors import UnavailableError
from muster.domain.states import TERMINAL_JOB_STATES, AttemptState

_OPEN_JOBS: Final = Job.state.not_in(TERMINAL_JOB_STATES)


class DatabaseFigures(Collector):
    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units

    def describe(self) -> Iterator[Metric]:
        """Nothing is counted at registration: the database may not be there yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        try:
            yield from self._collect()
        except UnavailableError:
            yield GaugeMetricFamily("muster_database_up", "Whether the database answers", value=0)

    def _collect(self) -> Iterator[Metric]:
        with self._units.read() as session:
            jobs = session.execute(select(Job.state, func.count()).where(_OPEN_JOBS).group_by(Job.state)).all()
            live = select(Attempt.state, func.count()).where(Attempt.state != AttemptState.ENDED)
            attempts = session.execute(live.group_by(Attempt.state)).all()
            nodes = session.execute(select(Node.contact, func.count()).group_by(Node.contact)).all()
            gpus = session.execute(select(Gpu.standing, func.count()).group_by(Gpu.standing)).all()
            opened = select(Incident.kind, func.count()).where(Incident.closed_at.is_(None))
            incidents = session.execute(opened.group_by(Incident.kind)).all()
            waiting = (OutboxMessage.sent_at.is_(None), OutboxMessage.dead_at.is_(None))
            pending = session.execute(select(func.count(), func.min(OutboxMessage.created_at)).where(*waiting)).one()
            unsequenced = session.scalar(select(func.count()).where(Event.position.is_(None))) or 0
        yield _by_state("muster_jobs", "Open jobs by state", "state", dict(jobs))
        yield _by_state("muster_attempts", "Live attempts by state", "state", dict(attempts))
        yield _by_state("muster_nodes", "Nodes by contact", "contact", dict(nodes))
        yield _by_state("muster_gpus", "GPUs by standing", "standing", dict(gpus))
        yield _by_state("muster_incidents_open", "Open incidents by kind", "kind", dict(incidents))
        yield GaugeMetricFamily("muster_outbox_pending", "Messages not yet sent", value=pending[0])
        oldest: datetime | None = pending[1]
        age_s = 0.0 if oldest is None else (self._units.clock() - oldest).total_seconds()
        yield GaugeMetricFamily("muster_outbox_oldest_seconds", "Age of the oldest unsent message", value=age_s)
        yield GaugeMetricFamily("muster_events_unsequenced", "Committed events without a position", value=unsequenced)
        yield GaugeMetricFamily("muster_database_up", "Whether the database answers", value=1)


def _by_state(name: str, words: str, label: str, counts: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for state, count in sorted(counts.items()):
        family.add_metric([str(state)], count)
    return family
