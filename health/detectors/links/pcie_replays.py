"""PCIe replays a minute, by generation and lanes. Source: DCGM: ceil(lanes × 0.15, 0.3, 0.48, 0.96, 1.92, 3.84)."""

from math import ceil
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import rate_of
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "pcie_replays"
ABOUT: Final = About("more PCIe replays a minute than generation and lanes allow", "DCGM", Severity.WARNING)


def limit_per_minute(generation: float, lanes: float, policy: HealthPolicy) -> int:
    """Return how many replays a minute a link may have: 16 lanes of generation 4 may have 16, of generation 5 31."""
    rates = policy.detectors.pcie_replays.per_lane_per_minute
    return ceil(round(lanes * rates[min(max(int(generation), 1), len(rates)) - 1], 6))


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding, none where generation and lanes, and so the limit, are unknown."""
    per_minute = rate_of(signal, "pcie_replays", 60.0)
    generation, lanes = signal.values.get("pcie_generation"), signal.values.get("pcie_width")
    if per_minute is None or not generation or not lanes:
        return NO_FINDINGS
    limit = limit_per_minute(generation, lanes, policy)
    if per_minute <= limit:
        return NO_FINDINGS
    words = (
        f"{per_minute:.0f} PCIe replays a minute, {limit} at most over {lanes:.0f} lanes of generation {generation:.0f}"
    )
    values = {"per_minute": per_minute, "limit": float(limit)}
    return (signal_finding(NAME, signal, NAME, Severity.WARNING, policy, words, values=values),)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_RATES,), ABOUT, Nature.RATE)
