"""NVIDIA's own flag that uncorrectable SRAM errors passed their threshold. Source: DCGM isolates such a GPU.

It condemns: NVIDIA's memory error guide sends such a board to field diagnosis. The error itself, and whether a program
read wrong data, is ``ecc_uncorrected``'s.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "sram_threshold"
ABOUT: Final = About("the driver says that SRAM errors passed NVIDIA's threshold", "DCGM; NVML", Severity.CONDEMNING)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    if not signal.values.get("sram_threshold_exceeded", 0) > 0:
        return NO_FINDINGS
    words = "uncorrectable SRAM errors passed NVIDIA's threshold: field diagnosis"
    return (signal_finding(NAME, signal, NAME, Severity.CONDEMNING, policy, words),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "sram_threshold_exceeded") else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
