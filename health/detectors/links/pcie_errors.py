"""Correctable PCIe errors (AER). Source: DCGM's targeted stress: 480 in 15 minutes."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import rate_of
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "pcie_errors"
ABOUT: Final = About("more than 32 correctable PCIe errors a minute", "DCGM", Severity.WARNING)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    per_minute = rate_of(signal, "pcie_correctable_errors", 60.0)
    if per_minute is None or per_minute <= policy.detectors.pcie_errors.errors_per_minute:
        return NO_FINDINGS
    words = f"{per_minute:.0f} correctable PCIe errors a minute"
    return (signal_finding(NAME, signal, NAME, Severity.WARNING, policy, words, values={"per_minute": per_minute}),)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_RATES,), ABOUT, Nature.RATE)
