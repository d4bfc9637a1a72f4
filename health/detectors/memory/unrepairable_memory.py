"""Memory that the driver reports as unrepairable: the board is to be replaced, as after a failed remap.

Source: NVML.
"""

from dataclasses import replace
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "unrepairable_memory"
ABOUT: Final = About("the driver says that memory cannot be repaired", "NVML", Severity.CONDEMNING)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    if not signal.values.get(NAME, 0) > 0:
        return NO_FINDINGS
    words = "the driver says that memory cannot be repaired: the board is to be replaced"
    found = signal_finding(NAME, signal, NAME, Severity.CONDEMNING, policy, words)
    return (replace(found, threatens_correctness=True),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, NAME) else ()


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
