"""A power limit under the board's own. Source: NVIDIA: a power cap is benign unless the limit is under the default.

It is to be watched: it slows a whole gang, but may be deliberate.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "power_limit"
ABOUT: Final = About("the power limit is under the board's own", "NVML; Azure node health checks", Severity.WARNING)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    limit_w, default_w = signal.values.get("power_limit_w"), signal.values.get("default_power_limit_w")
    if (
        limit_w is None
        or default_w is None
        or not 0 < limit_w < default_w * policy.detectors.power_limit.least_fraction
    ):
        return NO_FINDINGS
    words = f"the power limit is {limit_w:.0f} W, the board's own {default_w:.0f} W"
    values = {"limit_w": limit_w, "default_w": default_w}
    return (signal_finding(NAME, signal, NAME, Severity.WARNING, policy, words, values=values),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "power_limit_w", "default_power_limit_w") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
