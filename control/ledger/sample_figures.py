"""Figures from one host's hour of samples: of GPUs by their assignment, of ports by the job that ran alone.

Bytes over NVLinks belong to the GPU's job. Bytes through the host's ports belong to a job only while no other job has a
GPU of that host:

    GPUs 0-3   aaaaaaaaaa....       a, b: attempts
    GPUs 4-7   ......bbbbbbbb
    ports      aaaaaa----bbbb       of job a, shared, of job b
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from control.ledger.figure_rows import Group, Tally
from control.telemetry.codec import PORT_VALUES, Floats
from control.telemetry.hours import NodeHour
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import NodeId
from muster.sizes import BYTES_PER_GB

_METRICS: Final = ("utilisation_percent", "nvlink_sent_bytes_per_s", "nvlink_received_bytes_per_s")
WIDTH: Final = len(_METRICS)
_SENT, _RECEIVED, _LINK = (PORT_VALUES.index(f"{name}_bytes_per_s") for name in ("sent", "received", "link"))

Times = npt.NDArray[np.bool_]
"""Which of the samples."""
Rates = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Use:
    """A GPU's assignment to an attempt, in seconds of the hour from ``start`` to ``end``."""

    attempt_id: str
    start: float
    end: float
    group: Group

    def covers(self, seconds: npt.NDArray[np.int64]) -> Times:
        return (seconds >= self.start) & (seconds < self.end)


@dataclass(slots=True)
class Uses:
    """Assignments by host and GPU, and the sites of hosts."""

    by_host: dict[NodeId, dict[str, list[Use]]] = field(default_factory=dict)
    sites: dict[NodeId, str] = field(default_factory=dict)

    def add(self, node_id: NodeId, gpu_uuid: str, use: Use) -> None:
        self.by_host.setdefault(node_id, {}).setdefault(gpu_uuid, []).append(use)


def metrics_read(whole: NodeHour) -> NodeHour:
    """Return the hour with the metrics that figures read alone; NaN where its schema lacks one, or it is below 0."""
    width = whole.values.shape[2]
    values = np.full((*whole.values.shape[:2], WIDTH), np.nan, dtype=np.float32)
    for place, name in enumerate(_METRICS):
        if INDEX[name] < width:
            values[:, :, place] = whole.values[:, :, INDEX[name]]
    values[~(values >= 0)] = np.nan
    return replace(whole, values=values)


def add_host(tally: Tally, node_id: NodeId, samples: NodeHour, uses: Uses) -> None:
    """Add the samples of one host, as ``metrics_read`` gives them."""
    free = Group(site=uses.sites.get(node_id, ""))
    by_gpu = uses.by_host.get(node_id, {})
    for uuid, values in zip(samples.gpu_uuids, samples.values, strict=True):
        _add_gpu(tally, samples.seconds, values, by_gpu.get(uuid, ()), free)
    if samples.ports:
        _add_ports(tally, samples, by_gpu, free)


def _add_gpu(tally: Tally, seconds: npt.NDArray[np.int64], values: Floats, uses: Sequence[Use], free: Group) -> None:
    utilisation, *rates = values.astype(np.float64).T
    sent, received = (rate / BYTES_PER_GB for rate in rates)
    is_free = np.ones(len(seconds), dtype=np.bool_)
    for use in uses:
        is_within = use.covers(seconds)
        is_free &= ~is_within
        own = _known(utilisation, is_within)
        if len(own):
            tally.add("gpu_utilisation", "assigned", use.group, num=len(own), total=float(own.sum()))
            mean = float(own.mean())
            tally.add("gpu_utilisation", "sustained", use.group, total=mean, value=mean)
        _add_rates(tally, "nvlink_throughput", "assigned", use.group, sent, received, is_within)
    rest = _known(utilisation, is_free)
    if len(rest):
        tally.add("gpu_utilisation", "free", free, num=len(rest), total=float(rest.sum()))
    tally.spread("nvlink_throughput", "free", free, _known(sent + received, is_free))


def _add_ports(tally: Tally, samples: NodeHour, by_gpu: Mapping[str, list[Use]], free: Group) -> None:
    ports = samples.port_values.astype(np.float64)
    sent, received = (_over_ports(ports[:, :, place]) / BYTES_PER_GB for place in (_SENT, _RECEIVED))
    # Cards count in steps, so one sample may exceed the link's speed.
    shares = np.minimum(np.fmax(ports[:, :, _SENT], ports[:, :, _RECEIVED]) / ports[:, :, _LINK], 1.0)
    for part, group, times in _by_attempt(samples.seconds, by_gpu, free):
        if part == "alone":
            _add_rates(tally, "network_throughput", part, group, sent, received, times)
        else:
            tally.spread("network_throughput", part, group, _known(sent + received, times))
        of_part = shares[:, times]
        tally.spread("network_saturation", part, group, of_part[np.isfinite(of_part)])


def _by_attempt(
    seconds: npt.NDArray[np.int64], by_gpu: Mapping[str, list[Use]], free: Group
) -> list[tuple[str, Group, Times]]:
    """Return the parts of the hour: of each attempt that ran alone, of several at once, and of none."""
    held: dict[str, tuple[Group, Times]] = {}
    for use in (use for uses in by_gpu.values() for use in uses):
        _, before = held.get(use.attempt_id, (use.group, np.zeros(len(seconds), dtype=np.bool_)))
        held[use.attempt_id] = use.group, before | use.covers(seconds)
    num_attempts = np.zeros(len(seconds), dtype=np.int64)
    for _, times in held.values():
        num_attempts += times
    alone = [("alone", group, times & (num_attempts == 1)) for group, times in held.values()]
    return [*alone, ("shared", free, num_attempts > 1), ("free", free, num_attempts == 0)]


def _over_ports(rates: Rates) -> Rates:
    """Return the sum over ports; NaN where no port has a rate."""
    return np.where(np.isfinite(rates).any(axis=0), np.nansum(rates, axis=0), np.nan)


def _add_rates(tally: Tally, figure: str, part: str, group: Group, sent: Rates, received: Rates, times: Times) -> None:
    """Add the sums of both directions as ``part``, and each direction as a part of its own."""
    tally.spread(figure, part, group, _known(sent + received, times))
    for direction, rates in (("sent", sent), ("received", received)):
        known = _known(rates, times)
        if len(known):
            tally.add(figure, direction, group, num=len(known), total=float(known.sum()))


def _known(values: Rates, times: Times) -> Rates:
    return values[times & np.isfinite(values)]
