"""XID 136 or 143 again: the board has to be held, since the fault recurs. Source: NVIDIA's catalogue."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.repeats.repeat import NVIDIA, Repeat, Seen, comes_again
from muster.domain.evidence.findings import Severity

NAME: Final = "reset_repeats"
HOLD: Final = "reset_repeats:hold"
_CODES: Final = (136, 143)


def judge(seen: Seen) -> Findings:
    times = comes_again(seen, seen.policy.detectors.reset_repeats, _CODES)
    if not times:
        return NO_FINDINGS
    words = f"XID 136 or 143 {times} times: hold the board, the fault recurs"
    return (seen.found(NAME, Severity.CONDEMNING, words, key="hold"),)


RULE: Final = Repeat(NAME, judge, About("XID 136 or 143 again", NVIDIA, Severity.CONDEMNING))
