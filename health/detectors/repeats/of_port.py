"""The finding that repetitions about one port share."""

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.repeats.repeat import TIMES, Seen
from muster.domain.evidence.findings import Severity
from muster.domain.policy.gpu_detectors import RepeatPolicy


def found(seen: Seen, name: str, times: int, rule: RepeatPolicy, what: str) -> Findings:
    if times < rule.times:
        return NO_FINDINGS
    port = seen.newest.fault_key.partition(":")[2]
    words = f"port {port} {what} {times} times"
    return (seen.found(name, Severity.DEGRADED, words, key=port, values={TIMES: float(times)}),)
