"""A dcgm-exporter's text as our own readings: the same metrics, in our units, a reading a GPU.

Parsed by one anchored expression a line: the Prometheus client's parser takes 57 times as long for a scrape of eight
GPUs, and gives samples of ``# TYPE … counter`` another name (``…_TOTAL`` becomes ``…_TOTAL_total``); that name is
understood too, for exporters that use OpenMetrics. DCGM writes huge numbers ("blank") for unknown values: None.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from muster.domain.gpu.metrics import INDEX, NUM_METRICS, Values

_SAMPLE: Final = re.compile(
    r"\s*(?P<name>DCGM_[A-Z0-9_]{1,96}?)(?:_total)?\{(?P<labels>[^\n]*)\}\s+(?P<value>[^\s]{1,64})(?:\s+-?\d{1,20})?\s*\Z"
)
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_BLANK: Final = float(0x7FFFFFF0)
_BLANK_LONG: Final = float(0x7FFFFFFFFFFFFFF0)
_BLANK_FLOAT: Final = 140_737_488_355_328.0
_MOST_DIGITS: Final = 9
LAST_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
MEMORY_USED: Final = "DCGM_FI_DEV_FB_USED"
TENSOR_ACTIVE: Final = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
"""Field 1004: a share of the time from 0 to 1, blank where the exporter may not profile the GPU."""

DCGM_FIELDS: Final[Mapping[str, tuple[str, float]]] = {
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature_c", 1),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("power_limit_w", 1),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_mhz", 1),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("clock_event_reasons", 1),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("clock_event_reasons", 1),
    "DCGM_FI_DEV_GPU_UTIL": ("utilisation_percent", 1),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_utilisation_percent", 1),
    MEMORY_USED: ("memory_used_mib", 1),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("ecc_corrected_volatile", 1),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("ecc_uncorrected_volatile", 1),
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": ("ecc_corrected_aggregate", 1),
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": ("ecc_uncorrected_aggregate", 1),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("remapped_rows_corrected", 1),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows_uncorrected", 1),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("remap_pending", 1),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remap_failure", 1),
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": ("recovery_action", 1),
    "DCGM_FI_DEV_PCIE_LINK_GEN": ("pcie_generation", 1),
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": ("pcie_width", 1),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("pcie_replays", 1),
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("nvlink_crc_errors", 1),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("nvlink_replays", 1),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("nvlink_recoveries", 1),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_sent_bytes_per_s", 1),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_received_bytes_per_s", 1),
    TENSOR_ACTIVE: ("tensor_active_percent", 100),
}
"""DCGM's field → our metric, and the factor from its unit to ours (DCGM reports energy in millijoules, and activity of
its profiling as a share).
"""


@dataclass(slots=True)
class DcgmGpu:
    """Readings of one GPU in a scrape.

    ``last_xid``: the number of the newest XID, 0 for none, None where the exporter does not report it. It is a gauge
    that stays, without time or count: only its change makes an event (``last_xid``).
    """

    uuid: str
    index: int | None = None
    model: str | None = None
    pci: str | None = None
    host: str | None = None
    driver: str | None = None
    last_xid: int | None = None
    values: dict[str, float] = field(default_factory=dict)

    def row(self) -> Values:
        """Return the values in the order of our metrics; None where the scrape has none."""
        made: list[float | None] = [None] * NUM_METRICS
        for name, value in self.values.items():
            made[INDEX[name]] = value
        return tuple(made)


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape. ``num_unknown``: samples without one of our metrics. ``bad_lines``: numbers of malformed lines."""

    gpus: tuple[DcgmGpu, ...]
    num_samples: int
    num_unknown: int
    bad_lines: tuple[int, ...]


def parse_metrics(lines: Iterable[str]) -> Scrape:
    """Return the scrape. Never raises: a malformed line is listed by its number, from 1 on."""
    gpus: dict[str, DcgmGpu] = {}
    num_samples = num_unknown = 0
    bad: list[int] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _SAMPLE.match(line)
        value = _number(match["value"]) if match is not None else None
        if match is None or value is None:
            bad.append(number)
            continue
        labels = {name: _ESCAPED.sub(_unescaped, text) for name, text in _LABEL.findall(match["labels"])}
        uuid = labels.get("UUID") or labels.get("uuid")
        if not uuid:
            bad.append(number)
            continue
        num_samples += 1
        gpu = gpus.setdefault(uuid, DcgmGpu(uuid))
        _describe(gpu, labels)
        num_unknown += not _take(gpu, match["name"], value, is_part="GPU_I_ID" in labels)
    return Scrape(tuple(gpus.values()), num_samples, num_unknown, tuple(bad))


def merged(nvml: Values, dcgm: Values) -> Values:
    """Return NVML's reading, with DCGM's where NVML has none: never a sum, since both count the same errors."""
    return tuple(theirs if ours is None else ours for ours, theirs in zip(nvml, dcgm, strict=True))


def _take(gpu: DcgmGpu, name: str, value: float, *, is_part: bool) -> bool:
    """Store a sample, and return whether its field is known.

    For a GPU in MIG instances memory is the sum of the instances, activity of tensor cores that of the busiest one, all
    else any instance's.
    """
    if name == LAST_XID:
        if not is_blank(value):
            gpu.last_xid = max(gpu.last_xid or 0, int(value))
        return True
    metric, factor = DCGM_FIELDS.get(name, (None, 1.0))
    if metric is None:
        return False
    if is_blank(value) or (name == TENSOR_ACTIVE and not 0 <= value <= 1):
        return True
    if is_part and name == MEMORY_USED:
        gpu.values[metric] = gpu.values.get(metric, 0.0) + value
    elif is_part and name == TENSOR_ACTIVE:
        gpu.values[metric] = max(gpu.values.get(metric, 0.0), value * factor)
    elif not is_part or metric not in gpu.values:
        gpu.values[metric] = value * factor
    return True


def is_blank(value: float) -> bool:
    """Return whether DCGM's number means no value: not supported, not watched, no permission, or not a number."""
    if math.isnan(value) or math.isinf(value):
        return True
    return any(blank <= value < blank + 16 for blank in (_BLANK, _BLANK_FLOAT)) or value >= _BLANK_LONG


def _describe(gpu: DcgmGpu, labels: Mapping[str, str]) -> None:
    index = labels.get("gpu", "")
    if gpu.index is None and index.isascii() and index.isdecimal() and len(index) <= _MOST_DIGITS:
        gpu.index = int(index)
    gpu.model = gpu.model or labels.get("modelName")
    gpu.pci = gpu.pci or labels.get("pci_bus_id")
    gpu.host = gpu.host or labels.get("Hostname")
    gpu.driver = gpu.driver or labels.get("DCGM_FI_DRIVER_VERSION")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
