"""Gauges that are counted when they are read: lengths of queues, by state. Low cardinality: states and nothing else."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from control.core.unit_of_work import UnitOfWorkFactory
from control.system.gauges import read_gauges
from muster.domain.errors import UnavailableError


class DatabaseFigures(Collector):
    def __init__(self, units: UnitOfWorkFactory) -> None:
        self._units = units

    def describe(self) -> Iterator[Metric]:
        """Return nothing at registration: the database may not be there yet."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        try:
            yield from self._collect()
        except UnavailableError:
            yield GaugeMetricFamily("muster_database_up", "Whether the database answers", value=0)

    def _collect(self) -> Iterator[Metric]:
        found = read_gauges(self._units)
        yield _by_state("muster_jobs", "Open jobs by state", "state", found.open_jobs)
        yield _by_state("muster_attempts", "Live attempts by state", "state", found.live_attempts)
        yield _by_state("muster_nodes", "Nodes by contact", "contact", found.nodes)
        yield _by_state("muster_gpus", "GPUs by effective standing", "standing", found.gpus)
        cordoned = "GPUs that a cordon of their own or of their node keeps out of new placements"
        yield GaugeMetricFamily("muster_gpus_cordoned", cordoned, value=found.num_cordoned_gpus)
        yield _by_state("muster_incidents_open", "Open incidents by kind", "kind", found.open_incidents)
        yield GaugeMetricFamily("muster_outbox_pending", "Messages not yet sent", value=found.num_messages)
        oldest = found.oldest_message_at
        age_s = 0.0 if oldest is None else (self._units.clock() - oldest).total_seconds()
        yield GaugeMetricFamily("muster_outbox_oldest_seconds", "Age of the oldest unsent message", value=age_s)
        yield _by_state("muster_loop_age_seconds", "Age of each loop's newest progress", "loop", found.loop_ages_s)
        unsequenced = found.num_unsequenced
        yield GaugeMetricFamily("muster_events_unsequenced", "Committed events without a position", value=unsequenced)
        yield GaugeMetricFamily("muster_database_up", "Whether the database answers", value=1)


def _by_state(name: str, words: str, label: str, counts: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for state, count in sorted(counts.items()):
        family.add_metric([str(state)], count)
    return family
