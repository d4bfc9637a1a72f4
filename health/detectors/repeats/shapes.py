"""The shapes of most rules about repetitions: an XID again, one on one GPU alone, a fault of a port again."""

from collections.abc import Callable, Collection, Sequence

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.repeats.repeat import TIMES, Repeat, Seen, comes_again
from health.evidence.index import of_fault
from health.evidence.state import code_of
from muster.domain.evidence.findings import Evidence, Severity
from muster.domain.policy.detectors import DetectorsPolicy
from muster.domain.policy.gpu_detectors import RepeatPolicy

HOLD = "hold"
"""Part of a fault's key that says that no repair lasts: the board has to be held."""
Limits = Callable[[DetectorsPolicy], RepeatPolicy]
"""Picks a rule's window and count from the policy."""


def again(name: str, limits: Limits, codes: Collection[int], text: str, about: About) -> Repeat:
    """Return the rule that holds the board if an XID of ``codes`` recurs. ``text``: how the summary names the fault."""

    def judge(seen: Seen) -> Findings:
        times = comes_again(seen, limits(seen.policy.detectors), codes)
        if not times:
            return NO_FINDINGS
        words = f"{text} {times} times: hold the board, the fault recurs"
        return (seen.found(name, about.worst, words, key=HOLD),)

    return Repeat(name, judge, about, is_hold=True)


def alone(name: str, limits: Limits, codes: Collection[int], text: str, about: About) -> Repeat:
    """Return the rule for XIDs that a program causes at will, on one GPU and on no other of its node: to be diagnosed.

    On several GPUs of a node the program is the cause. On one it may be: no job that crashes repeatedly moves a GPU.
    """

    def judge(seen: Seen) -> Findings:
        rule = limits(seen.policy.detectors)
        times = comes_again(seen, rule, codes)
        since_ms = seen.newest.last_seen_ms - int(rule.window_s * 1000)
        if not times or any(each.last_seen_ms > since_ms and code_of(each) in codes for each in seen.elsewhere()):
            return NO_FINDINGS
        words = f"{text} {times} times on this GPU, and on no other of its node: to be diagnosed"
        return (seen.found(name, Severity.INFO, words, values={TIMES: float(times)}),)

    return Repeat(name, judge, about)


def of_port(
    name: str, limits: Limits, detector: str, text: str, about: About, *, times_in: Callable[[Sequence[Evidence]], int]
) -> Repeat:
    """Return the rule for a port's fault of ``detector`` that recurs. ``times_in``: how often it is in the evidence."""

    def judge(seen: Seen) -> Findings:
        rule = limits(seen.policy.detectors)
        if seen.newest.detector != detector:
            return NO_FINDINGS
        times = times_in(seen.alike(rule.window_s, of_fault(seen.newest.fault_key)))
        if times < rule.times:
            return NO_FINDINGS
        port = seen.newest.fault_key.partition(":")[2]
        words = f"port {port} {text} {times} times"
        return (seen.found(name, about.worst, words, key=port, values={TIMES: float(times)}),)

    return Repeat(name, judge, about)
