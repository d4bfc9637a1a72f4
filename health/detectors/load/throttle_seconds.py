"""Clocks held down, by the driver's own count of seconds (NVML fields 269 to 271): the faults of ``clock_events``.

A window that is held down for the policy's share is a finding; samples miss it where clocks were free at their times.
"""

from typing import Final

from health.detectors.detector import About, Findings, SignalDetector, signal_finding
from health.detectors.load import clock_events
from health.detectors.readings import rate_of
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "throttle_seconds"
ABOUT: Final = About("clocks are held down for most of a window", "NVML clock event durations; gpud", Severity.DEGRADED)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return findings with the fault keys of ``clock_events``, so that both are one evidence."""
    least = policy.detectors.throttle_seconds.share
    return tuple(
        signal_finding(
            NAME,
            signal,
            f"{clock_events.NAME}:{rule.name}",
            rule.severity,
            policy,
            f"clocks held down by {rule.text} for {share:.0%} of the time",
            values={"share": share},
        )
        for rule in clock_events.CLOCK_EVENT_RULES
        if (share := rate_of(signal, f"{rule.name}_s", 1.0)) is not None and share >= least
    )


# HW slowdown has no count of seconds: its causes have.
DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_RATES,), ABOUT, Nature.RATE)
