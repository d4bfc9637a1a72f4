"""The metrics of a sample: one list, in one order, for wire, latest state, history and detectors.

A value is None where there is none: the function is unsupported, or this poll failed. It is never zero instead. A new
metric goes to the end, and ``SCHEMA`` grows by one: reports and stored blocks name the schema under which they were
written. An earlier schema stays readable, with None for each newer metric.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

SCHEMA: Final = 3

Kind = Literal["gauge", "counter", "flags"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a sample.

    ``counter``: it only grows within one life of the driver. ``flags``: it is a bit mask, and never averaged.
    """

    name: str
    unit: str
    kind: Kind
    words: str


METRICS: Final[tuple[Metric, ...]] = (
    Metric("temperature_c", "°C", "gauge", "GPU core temperature"),
    Metric("memory_temperature_c", "°C", "gauge", "HBM temperature"),
    Metric("temperature_margin_c", "°C", "gauge", "degrees left until the GPU slows itself down (T.Limit)"),
    Metric("power_w", "W", "gauge", "board power"),
    Metric("power_limit_w", "W", "gauge", "enforced power limit"),
    Metric("energy_j", "J", "counter", "energy since the driver was loaded"),
    Metric("sm_clock_mhz", "MHz", "gauge", "SM clock"),
    Metric("memory_clock_mhz", "MHz", "gauge", "memory clock"),
    Metric("clock_event_reasons", "", "flags", "why the clock is below what was asked (NVML's bits)"),
    Metric("utilisation_percent", "%", "gauge", "share of the last interval in which a kernel ran"),
    Metric("memory_utilisation_percent", "%", "gauge", "share of the last interval in which memory was used"),
    Metric("memory_used_mib", "MiB", "gauge", "device memory in use"),
    Metric("num_processes", "", "gauge", "compute processes on the GPU"),
    Metric("ecc_corrected_volatile", "", "counter", "corrected ECC errors since the driver was loaded"),
    Metric("ecc_uncorrected_volatile", "", "counter", "uncorrected ECC errors since the driver was loaded"),
    Metric("ecc_corrected_aggregate", "", "counter", "corrected ECC errors in the board's life"),
    Metric("ecc_uncorrected_aggregate", "", "counter", "uncorrected ECC errors in the board's life"),
    Metric("remapped_rows_corrected", "", "counter", "rows remapped after correctable errors"),
    Metric("remapped_rows_uncorrected", "", "counter", "rows remapped after uncorrectable errors"),
    Metric("remap_pending", "", "gauge", "1 while a remap waits for a reset"),
    Metric("remap_failure", "", "gauge", "1 once a remap has failed"),
    Metric("recovery_action", "", "gauge", "what the driver asks for: 0 none, 1 GPU reset, 2 reboot, 3 drain P2P, …"),
    Metric("pcie_generation", "", "gauge", "PCIe generation in use; lower while idle is normal"),
    Metric("pcie_width", "", "gauge", "PCIe lanes in use"),
    Metric("pcie_replays", "", "counter", "PCIe replays since the driver was loaded"),
    Metric("nvlink_active_links", "", "gauge", "NVLinks that are up"),
    Metric("nvlink_crc_errors", "", "counter", "NVLink CRC errors over all links"),
    Metric("nvlink_replays", "", "counter", "NVLink replays over all links"),
    Metric("nvlink_recoveries", "", "counter", "NVLink recoveries over all links"),
    Metric("tensor_active_percent", "%", "gauge", "share of the last interval in which tensor cores computed"),
    Metric("nvlink_sent_bytes_per_s", "bytes/s", "gauge", "bytes sent over all NVLinks"),
    Metric("nvlink_received_bytes_per_s", "bytes/s", "gauge", "bytes received over all NVLinks"),
)

NUM_METRICS: Final = len(METRICS)
WIDTHS: Final[Mapping[int, int]] = {1: 29, 2: 30, SCHEMA: NUM_METRICS}
"""Schema → its number of metrics, for each one that this release reads. Release 0.1.0 has schema 1."""
INDEX: Final = {metric.name: position for position, metric in enumerate(METRICS)}
"""Name → position in a sample's values."""

FROM_DCGM_ALONE: Final = frozenset({"tensor_active_percent"})
"""Metrics that no call of NVML reports. A host without a dcgm-exporter that profiles has none."""

NOT_ON_ALL: Final = FROM_DCGM_ALONE | {"nvlink_sent_bytes_per_s", "nvlink_received_bytes_per_s"}
"""Metrics that many GPUs lack without any fault: pages leave them out there, and name others unsupported."""

Values = tuple[float | None, ...]
"""One value a metric, in the order of ``METRICS``."""


def value_of(values: Values, name: str) -> float | None:
    return values[INDEX[name]]
