"""XID 13 again in one TPC. Source: NVSentinel's analyzer."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.repeats.repeat import NVSENTINEL, TIMES, Repeat, Seen, num_bursts
from health.evidence.index import of_code_at, place_in_gpu
from health.evidence.state import code_of
from muster.domain.evidence.findings import Severity

NAME: Final = "sm_exception_repeats"
_SM_EXCEPTION: Final = 13


def judge(seen: Seen) -> Findings:
    rule, place = seen.policy.detectors.sm_exception_repeats, place_in_gpu(seen.newest)
    gpc, tpc, _ = place
    if gpc is None or tpc is None or code_of(seen.newest) != _SM_EXCEPTION:
        return NO_FINDINGS
    times = num_bursts(seen.alike(rule.window_s, of_code_at(_SM_EXCEPTION, place)), seen.policy)
    if times < rule.times:
        return NO_FINDINGS
    words = f"XID 13 {times} times in GPC {gpc:.0f}, TPC {tpc:.0f}: to be diagnosed"
    return (seen.found(NAME, Severity.INFO, words, values={TIMES: float(times)}),)


RULE: Final = Repeat(NAME, judge, About("XID 13 again in one TPC", NVSENTINEL, Severity.INFO))
