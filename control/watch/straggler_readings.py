"""Readings of the GPUs of an attempt that explain a slow rank: clock, temperature, and reasons that lower the clock."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from control.attempts.attempts import LoadedAttempt
from control.attempts.ranks import gpus_by_rank
from control.core.unit_of_work import UnitOfWork
from control.telemetry.node_readings import newest_readings
from health.detectors.load.clock_events import HARMFUL
from muster.domain.gpu.metrics import Values, value_of
from watch.stragglers.causes import CLOCK, TEMPERATURE, THROTTLE

FRESH: Final = timedelta(seconds=60)
"""Older readings say nothing about the newest windows."""
MOST_NODES: Final = 64


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
