"""A corrupt InfoROM. Source: NVML's checksums; NVSentinel asks for a reset. Running programs may end first."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "inforom"
ABOUT: Final = About("the InfoROM's checksums are wrong", "NVML; NVSentinel's mapping of DCGM", Severity.DEGRADED)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    if signal.values.get("inforom_valid", 1) != 0:
        return NO_FINDINGS
    words = "the InfoROM is corrupt: reset the GPU, and replace it if it is corrupt again"
    return (signal_finding(NAME, signal, NAME, Severity.DEGRADED, policy, words),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "inforom_valid") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
