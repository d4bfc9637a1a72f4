"""XIDs that a program causes at will, on one GPU and on no other of its node: the GPU is to be diagnosed.

On several GPUs of a node the program is the cause. On one it may be: no job that crashes repeatedly moves a GPU.
"""

from collections.abc import Collection

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.repeats.repeat import TIMES, Seen, comes_again
from health.evidence.state import code_of
from muster.domain.evidence.findings import Severity
from muster.domain.policy.gpu_detectors import RepeatPolicy


def judge(seen: Seen, name: str, rule: RepeatPolicy, codes: Collection[int], what: str) -> Findings:
    times = comes_again(seen, rule, codes)
    since_ms = seen.newest.last_seen_ms - int(rule.window_s * 1000)
    if not times or any(each.last_seen_ms > since_ms and code_of(each) in codes for each in seen.elsewhere()):
        return NO_FINDINGS
    words = f"{what} {times} times on this GPU, and on no other of its node: to be diagnosed"
    return (seen.found(name, Severity.INFO, words, values={TIMES: float(times)}),)
