"""A host that lists fewer GPUs than before. About the node: the GPU that is gone has its own finding (``gpu_lost``).

8 → 7 → 8 is one finding, closed when the last is found again; coming back is no finding.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings, SignalDetector, signal_finding
from muster.domain.evidence import EventKind, GpuSignal, Severity
from muster.domain.health_policy import HealthPolicy

NAME: Final = "gpu_count"


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """The signal's ``values``: how many GPUs there were ``before`` and are ``now``."""
    before, now = signal.values.get("before"), signal.values.get("now")
    if signal.kind is not EventKind.GPU_COUNT or before is None or now is None or now >= before:
        return NO_FINDINGS
    words = f"the driver lists {now:.0f} GPUs, {before:.0f} before"
    values = {"expected": before, "found": now}
    return (signal_finding(NAME, signal, NAME, Severity.WARNING, policy, words, values=values),)


DETECTOR: Final = SignalDetector(NAME, 1, judge)
