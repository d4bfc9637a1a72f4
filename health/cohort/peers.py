"""GPUs of one gang compared with each other: which GPU is apart from its peers under like load, and for how long.

A GPU slows its gang if it draws less power, clocks lower, runs hotter or works less than its peers, although none of
its own counters shows a fault. Pure: readings of now and the memory of earlier rounds in; findings out.

Source: the modified z-score of B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers (1993).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from health.detectors.detector import counts_for_ms
from health.detectors.load.heat import HOTTEST_C, LEAST_C
from health.detectors.modes import PEERS, in_mode
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy
from muster.domain.policy.scoring import PeerPolicy

NAME: Final = PEERS
VERSION: Final = 1
NORMAL: Final = 0.6745
"""The MAD of a normal distribution is that part of its standard deviation."""
UTILISATION: Final = "utilisation_percent"

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PeerMetric:
    """One compared metric, with the side on which a difference is a fault.

    ``bad_side``: +1 where only a value too high is a fault, -1 too low, 0 both. ``least``, ``most``: the range of a
    working sensor; a value outside it is no reading.
    """

    name: str
    text: str
    unit: str
    bad_side: int
    least: float
    most: float


COMPARED_METRICS: Final = (
    PeerMetric("power_w", "power", "W", 0, 0.0, 5_000.0),
    PeerMetric("sm_clock_mhz", "SM clock", "MHz", -1, 0.0, 10_000.0),
    PeerMetric("temperature_c", "temperature", "°C", 1, LEAST_C, HOTTEST_C),
    PeerMetric(UTILISATION, "utilisation", "%", -1, 0.0, 100.0),
)


_LEAST: Final = np.array([metric.least for metric in COMPARED_METRICS])
_MOST: Final = np.array([metric.most for metric in COMPARED_METRICS])


@dataclass(frozen=True, slots=True)
class Round:
    """The GPUs that work in gangs now. ``gangs``: a number a GPU, equal within one gang and cohort.

    ``values``: a row a GPU, a column a metric of ``METRICS``; NaN where there is no reading.
    """

    at_ms: int
    gpus: Sequence[GpuUuid]
    nodes: Sequence[NodeId]
    gangs: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Apart:
    """One GPU and metric that is apart now: ``z`` is signed, ``median`` that of the GPUs under like load."""

    index: int
    metric: int
    z: float
    median: float
    num_peers: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the last rounds, by GPU, gang and metric.

    ``windows``: the last rounds as bits, the newest lowest: 1 where it was apart. ``stated_ms``: standing fault → when
    it was last stated. A GPU that was never apart within the window is in neither.
    """

    windows: Mapping[tuple[GpuUuid, int, int], int] = field(default_factory=dict)
    stated_ms: Mapping[tuple[GpuUuid, int, int], int] = field(default_factory=dict)


def judge_round(memory: Memory, seen: Round, policy: HealthPolicy) -> tuple[Memory, tuple[Finding, ...]]:
    """Return the memory after this round, and a finding for each GPU that was apart in enough of the last rounds.

    A fault is stated when it begins to stand, and each ``restate_s`` while it does. A GPU that left its gang is
    forgotten: in another gang it starts from nothing.
    """
    rules = policy.peers
    span = (1 << rules.window_rounds) - 1
    apart = {(seen.gpus[one.index], int(seen.gangs[one.index]), one.metric): one for one in apart_now(seen, rules)}
    there = set(zip(seen.gpus, seen.gangs.tolist(), strict=True)) if memory.windows else set()
    onward = {
        key: window << 1 & span for key, window in memory.windows.items() if key[:2] in there and key not in apart
    }
    onward |= {key: (memory.windows.get(key, 0) << 1 | 1) & span for key in apart}
    windows = {key: window for key, window in onward.items() if window}
    stated: dict[tuple[GpuUuid, int, int], int] = {}
    findings = []
    for key, one in apart.items():
        if windows[key].bit_count() < rules.apart_rounds:
            continue
        last_ms = memory.stated_ms.get(key)
        is_due = last_ms is None or seen.at_ms - last_ms >= policy.evidence.restate_s * 1000
        stated[key] = seen.at_ms if is_due or last_ms is None else last_ms
        if is_due:
            findings.append(_finding(one, seen, windows[key].bit_count(), policy))
    kept = {key: at_ms for key, at_ms in memory.stated_ms.items() if key in windows and key not in stated}
    return Memory(windows, kept | stated), in_mode(tuple(findings), policy)


def apart_now(seen: Round, rules: PeerPolicy) -> list[Apart]:
    """Return the GPUs that are apart in this round, by GPU and metric.

    At any size of the fleet this takes a constant number of array operations.
    """
    if not len(seen.gangs):
        return []
    _, gangs = np.unique(seen.gangs, return_inverse=True)
    values = _expected(seen.values)
    load = values[:, _column(UTILISATION)]
    middle = medians(load, gangs)[gangs]
    with np.errstate(invalid="ignore"):
        is_busy = middle >= rules.utilisation_min_percent
        is_alike = is_busy & (np.abs(load - middle) <= rules.utilisation_band_percent)
    found: list[Apart] = []
    for metric, described in enumerate(COMPARED_METRICS):
        # A GPU with another load is apart in the load alone: a difference of its power or clock is no fault then.
        members = is_busy if described.name == UTILISATION else is_alike
        found += _apart_in(metric, values[:, metric], gangs, members, rules)
    return sorted(found, key=lambda one: (one.index, one.metric))


def _expected(values: Floats) -> Floats:
    """Return the values with NaN in place of what no working sensor reads: a broken sensor is no GPU that is apart."""
    with np.errstate(invalid="ignore"):
        return np.where((values >= _LEAST) & (values <= _MOST), values, np.nan)


def medians(values: Floats, groups: Ints) -> Floats:
    """Return the median of each group without its NaN values, and NaN for a group without any value.

    ``groups``: a whole number a value, from 0 on.
    """
    num_groups = int(groups.max(initial=-1)) + 1
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], groups[known]))]
    counts = np.bincount(groups[order], minlength=num_groups)
    starts = np.cumsum(counts) - counts
    result = np.full(num_groups, np.nan)
    has = counts > 0
    low, high = starts[has] + (counts[has] - 1) // 2, starts[has] + counts[has] // 2
    result[has] = (values[order[low]] + values[order[high]]) / 2
    return result


def _apart_in(metric: int, values: Floats, gangs: Ints, members: Flags, rules: PeerPolicy) -> list[Apart]:
    compared = np.where(members, values, np.nan)
    num_peers = np.bincount(gangs[~np.isnan(compared)], minlength=int(gangs.max()) + 1)[gangs]
    middle = medians(compared, gangs)[gangs]
    deviation = compared - middle
    mad = np.fmax(medians(np.abs(deviation), gangs)[gangs], floor_of(COMPARED_METRICS[metric], rules))
    z = NORMAL * deviation / mad
    side = COMPARED_METRICS[metric].bad_side
    with np.errstate(invalid="ignore"):
        is_apart = (np.abs(z) if side == 0 else z * side) >= rules.z_min
    chosen = np.flatnonzero(is_apart & (num_peers >= rules.gpus_min))
    return [Apart(int(at), metric, float(z[at]), float(middle[at]), int(num_peers[at])) for at in chosen]


def floor_of(metric: PeerMetric, rules: PeerPolicy) -> float:
    """Return the least MAD, in the metric's own unit."""
    floors: Mapping[str, Any] = {
        "power_w": rules.power_floor_w,
        "sm_clock_mhz": rules.sm_clock_floor_mhz,
        "temperature_c": rules.temperature_floor_c,
        UTILISATION: rules.utilisation_floor_percent,
    }
    return float(floors[metric.name])


def _column(name: str) -> int:
    return next(index for index, metric in enumerate(COMPARED_METRICS) if metric.name == name)


def _finding(one: Apart, seen: Round, count: int, policy: HealthPolicy) -> Finding:
    metric, value = COMPARED_METRICS[one.metric], float(seen.values[one.index, one.metric])
    words = (
        f"{metric.text} {value:.0f} {metric.unit} against a median of {one.median:.0f} {metric.unit} of "
        f"{one.num_peers} GPUs of its gang under like load, in {count} of {policy.peers.window_rounds} minutes"
    )
    return Finding(
        detector=NAME,
        version=VERSION,
        fault_key=f"{NAME}:{metric.name}",
        gpu_uuid=seen.gpus[one.index],
        node_id=seen.nodes[one.index],
        severity=Severity.WARNING,
        trust=Trust.MEASURED,
        source=Source.NVML,
        onset_ms=seen.at_ms,
        counts_for_ms=counts_for_ms(Severity.WARNING, policy, NAME),
        summary=words,
        values={"value": value, "median": one.median, "z": round(one.z, 2), "peers": float(one.num_peers)},
    )
