"""The use of the GPUs' time while a trace was played: work that counted, and each cause of loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.traces.course import MOMENT
from simulator.traces.jobs import TraceJob
from simulator.traces.playing import Played

NUM_SPANS: Final = 120
"""The number of equal spans of a trace for which means are reported."""

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LostHours:
    """Lost GPU-hours; with the useful ones they are the fleet's from the first submission to the last end.

    ``work_done_again``: since the last checkpoint before an interruption; ``restarts`` and ``checkpoints``: training
    stopped; ``rounding``: assigned to jobs that requested less than whole nodes; ``repairs``: of failed nodes. Idle:
    ``idle_scattered`` and ``idle_whole_nodes`` while a job was pending, on nodes partly in use and on others;
    ``no_demand`` while none was.
    """

    work_done_again: float
    restarts: float
    checkpoints: float
    rounding: float
    repairs: float
    idle_scattered: float
    idle_whole_nodes: float
    no_demand: float


@dataclass(frozen=True, slots=True)
class Span:
    """Means over a span of time that starts so long after the first submission.

    All but ``waiting`` are shares of all GPUs. ``utilisation``: GPUs of jobs; ``scattered``: idle ones on nodes partly
    in use; ``away``: GPUs of failed nodes; ``broken_racks``: idle ones on other nodes, of racks partly in use.
    """

    starts_s: float
    waiting: float
    utilisation: float
    scattered: float
    away: float
    broken_racks: float


def lost_hours(jobs: Sequence[TraceJob], played: Played) -> LostHours:
    took_s, columns = _moments(played)
    is_waited = columns["waiting"] > 0
    free_s, scattered_s = columns["free_gpus"] * took_s, columns["scattered_gpus"] * took_s
    gpus = np.array([job.gpus for job in jobs], dtype=float)
    held = np.array([job.num_nodes * job.gpus_per_node for job in jobs], dtype=float)
    work = played.work
    gpu_s = {
        "work_done_again": gpus @ np.array(work.lost_s),
        "restarts": gpus @ np.array(work.restarting_s),
        "checkpoints": gpus @ np.array(work.stalled_s),
        "rounding": (held - gpus) @ np.array(work.busy_s),
        "repairs": (columns["away_gpus"] * took_s).sum(),
        "idle_scattered": scattered_s[is_waited].sum(),
        "idle_whole_nodes": (free_s - scattered_s)[is_waited].sum(),
        "no_demand": free_s[~is_waited].sum(),
    }
    return LostHours(**{cause: float(value) / 3600 for cause, value in gpu_s.items()})


def over_time(played: Played, num_gpus: int) -> tuple[Span, ...]:
    """Return the means over time; empty if the trace takes no time."""
    took_s, columns = _moments(played)
    from_s, until_s = float(columns["at_s"][0]), played.end_s
    if until_s <= from_s:
        return ()
    edges = np.linspace(from_s, until_s, NUM_SPANS + 1)
    means = {name: _means(columns["at_s"], took_s, columns[name], edges) for name in MOMENT[1:]}
    busy = np.clip(num_gpus - means["free_gpus"] - means["away_gpus"], 0, num_gpus)
    return tuple(
        Span(*(float(value) for value in values))
        for values in zip(
            edges[:-1] - from_s,
            means["waiting"],
            busy / num_gpus,
            means["scattered_gpus"] / num_gpus,
            means["away_gpus"] / num_gpus,
            means["broken_rack_gpus"] / num_gpus,
            strict=True,
        )
    )


def idle_by_level(played: Played) -> dict[str, float]:
    """Return the share of idle GPU time that a larger job could not have used at each level; 0 if none was idle.

    ``node``: on nodes partly in use; ``rack``: on other nodes, of racks partly in use.
    """
    took_s, columns = _moments(played)
    idle_s = float(columns["free_gpus"] @ took_s)
    columns_of = {"node": "scattered_gpus", "rack": "broken_rack_gpus"}
    return {level: float(columns[name] @ took_s) / idle_s if idle_s else 0.0 for level, name in columns_of.items()}


def _means(at_s: Numbers, took_s: Numbers, values: Numbers, edges: Numbers) -> Numbers:
    """Return the mean between two edges each, of a number that stays constant from each moment to the next."""
    sums = np.concatenate([[0.0], np.cumsum(values * took_s)])
    ends_s = np.concatenate([at_s, [at_s[-1] + took_s[-1]]])
    means: Numbers = np.diff(np.interp(edges, ends_s, sums)) / np.diff(edges)
    return np.maximum(means, 0.0)


def _moments(played: Played) -> tuple[Numbers, dict[str, Numbers]]:
    """Return how long each moment lasted, and the columns."""
    table = np.frombuffer(played.moments).reshape(-1, len(MOMENT))
    columns = {name: table[:, number] for number, name in enumerate(MOMENT)}
    return np.diff(columns["at_s"], append=played.end_s), columns
