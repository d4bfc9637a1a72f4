"""A host that lists fewer GPUs than before, or than it enrolled with.

The finding is about the node: the missing GPU has its own (``gpu_lost``). 8 → 7 → 8 is one finding, closed when the
last GPU is found again; a return is no finding. From ``cordons_node_from`` missing GPUs on the host itself is at fault.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "gpu_count"
ABOUT: Final = About(
    "the driver lists fewer GPUs than before, or than the host enrolled with", "gpud; Azure; NICo", Severity.DEGRADED
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding of an event whose ``values`` are the numbers of GPUs ``before`` and ``now``."""
    before, now = signal.values.get("before"), signal.values.get("now")
    if before is None or now is None or now >= before:
        return NO_FINDINGS
    words = f"the driver lists {now:.0f} GPUs, {before:.0f} before"
    values = {"expected": before, "found": now}
    severity = _severity_of(before - now, policy)
    return (signal_finding(NAME, signal, NAME, severity, policy, words, values=values),)


def judge_state(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return the finding of the host's state: ``expected_gpus`` of its inventory and ``found_gpus``."""
    expected, found = signal.values.get("expected_gpus"), signal.values.get("found_gpus")
    if expected is None or found is None or found >= expected:
        return NO_FINDINGS
    words = f"the driver lists {found:.0f} GPUs, {expected:.0f} are enrolled"
    values = {"expected": expected, "found": found}
    severity = _severity_of(expected - found, policy)
    return (signal_finding(NAME, signal, NAME, severity, policy, words, values=values),)


def handles(signal: GpuSignal) -> tuple[str, ...]:
    return (NAME,) if has(signal, "expected_gpus", "found_gpus") else ()


def _severity_of(missing: float, policy: HealthPolicy) -> Severity:
    return Severity.DEGRADED if missing >= policy.detectors.gpu_count.cordons_node_from else Severity.WARNING


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_COUNT,), ABOUT)
STATE_DETECTOR: Final = SignalDetector(NAME, 1, judge_state, (EventKind.HOST_STATE,), ABOUT, Nature.STATE, handles)
