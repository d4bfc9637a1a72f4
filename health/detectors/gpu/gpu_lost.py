"""A GPU that the driver lost, by an event or in a sample. The fault stands until the driver answers for it again.

It condemns, but does not threaten correctness: a lost GPU computes nothing, so no result is wrong.
"""

from typing import Final

from health.detectors.detector import (
    NO_FINDINGS,
    About,
    Findings,
    Reading,
    SampleDetector,
    SignalDetector,
    signal_finding,
)
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.policy.health import HealthPolicy

NAME: Final = "gpu_lost"
_TEXT: Final = "the driver no longer answers for this GPU"


def judge(reading: Reading, policy: HealthPolicy) -> Findings:
    if not reading.sample.is_lost:
        return NO_FINDINGS
    return (reading.finding(NAME, NAME, Severity.CONDEMNING, policy, _TEXT),)


def judge_signal(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    if signal.kind is not EventKind.GPU_LOST:
        return NO_FINDINGS
    return (signal_finding(NAME, signal, NAME, Severity.CONDEMNING, policy, _TEXT),)


ABOUT: Final = About("the driver no longer answers for a GPU", "NVML: GPU is lost; XID 79", Severity.CONDEMNING)
DETECTOR: Final = SampleDetector(NAME, 1, judge, is_standing=True, about=ABOUT)
SIGNAL_DETECTOR: Final = SignalDetector(NAME, 1, judge_signal, (EventKind.GPU_LOST,), ABOUT)
