"""Functions that detectors of a port's counters share."""

from health.detectors.detector import NO_FINDINGS, Findings, signal_finding
from health.detectors.readings import name_in, rate_of
from muster.domain.evidence.findings import GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy


def rate_of_all(signal: GpuSignal, *names: str) -> float:
    """Return the total rise a second of several counters of one kind."""
    return sum(rate_of(signal, name, 1.0) or 0.0 for name in names)


def risen(name: str, signal: GpuSignal, severity: Severity, policy: HealthPolicy, rises: dict[str, float]) -> Findings:
    if not rises:
        return NO_FINDINGS
    port = name_in(signal)
    told = ", ".join(f"{counter.replace('_', ' ')} {rise:.0f}" for counter, rise in rises.items())
    return (signal_finding(name, signal, f"{name}:{port}", severity, policy, f"port {port}: {told}", values=rises),)
