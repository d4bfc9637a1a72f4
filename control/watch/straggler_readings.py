"""Readings of the GPUs of an attempt: utilisation and power of each window, and what explains a slow rank.

Clock, temperature and reasons that lower the clock explain. They are read only where a rank may be slow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import gpus_by_rank, ranks_of
from control.core.unit_of_work import UnitOfWork
from control.telemetry.node_readings import GpuReadings, newest_readings
from health.detectors.load.clock_events import HARMFUL
from muster.db.models import AttemptHost, Gpu
from muster.domain.gpu.metrics import Values, value_of
from muster.domain.ids import GpuUuid
from muster.domain.times import to_ms
from watch.stragglers.causes import CLOCK, TEMPERATURE, THROTTLE
from watch.stragglers.windows import POWER, UTILISATION

FRESH: Final = timedelta(seconds=60)
"""Older readings say nothing about the newest windows."""
MOST_NODES: Final = 64
_LOAD: Final = {UTILISATION: "utilisation_percent", POWER: "power_w"}


def readings_of(unit: UnitOfWork, loaded: LoadedAttempt) -> dict[int, Mapping[str, float]]:
    """Return the newest readings by rank; of a job whose ranks share GPUs, or without readings, none."""
    gpus = gpus_by_rank(unit, loaded)
    if not gpus:
        return {}
    nodes = [host.node_id for host in loaded.hosts[:MOST_NODES]]
    known = newest_readings(unit.session.connection(), nodes, since=unit.now - FRESH)
    return {
        rank: _figures(known[uuid].values) for rank, uuid in gpus.items() if uuid in known and not known[uuid].is_lost
    }


def _figures(values: Values) -> dict[str, float]:
    named = {CLOCK: value_of(values, "sm_clock_mhz"), TEMPERATURE: value_of(values, "temperature_c")}
    found = {name: value for name, value in named.items() if value is not None}
    reasons = value_of(values, "clock_event_reasons")
    if reasons is not None:
        found[THROTTLE] = float(bool(int(reasons) & HARMFUL))
    return found


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of an attempt's ranks on one host, and what its agent measured while a window lasted."""

    unit: UnitOfWork
    loaded: LoadedAttempt
    part: AttemptHost

    def models(self) -> dict[int, str]:
        """Return the model of each rank's GPU."""
        gpus = self._gpus()
        query = select(Gpu.uuid, Gpu.model).where(Gpu.uuid.in_(gpus.values()))
        models = dict(self.unit.session.execute(query).all())
        return {rank: models[uuid] or "" for rank, uuid in gpus.items() if uuid in models}

    def figures(self, lasted_s: Mapping[int, float]) -> dict[int, dict[str, float]]:
        """Return utilisation and power of each rank whose window ends now, and had lasted for so many seconds.

        A GPU without a reading of that time is left out, as is one that reports only one of the two.
        """
        since = max(self.unit.now - timedelta(seconds=max(lasted_s.values(), default=0.0)), self._since())
        known = newest_readings(self.unit.session.connection(), [self.part.node_id], since=since)
        found: dict[int, dict[str, float]] = {}
        for rank, uuid in self._gpus().items():
            if rank in lasted_s and uuid in known and self._is_within(known[uuid], lasted_s[rank]):
                found[rank] = _load_of(known[uuid].values)
        return {rank: figures for rank, figures in found.items() if len(figures) == len(_LOAD)}

    def _since(self) -> datetime:
        """Return since when its GPUs are the attempt's."""
        return self.loaded.attempt.running_at or self.loaded.attempt.placed_at

    def _gpus(self) -> dict[int, GpuUuid]:
        own = ranks_of(self.loaded, self.part)
        return {rank: uuid for rank, uuid in gpus_by_rank(self.unit, self.loaded).items() if rank in own}

    def _is_within(self, readings: GpuReadings, lasted_s: float) -> bool:
        since_ms = to_ms(self.unit.now - timedelta(seconds=lasted_s))
        return not readings.is_lost and readings.reported_in.received_ms >= since_ms


def _load_of(values: Values) -> dict[str, float]:
    named = {name: value_of(values, metric) for name, metric in _LOAD.items()}
    return {name: value for name, value in named.items() if value is not None and value >= 0}
