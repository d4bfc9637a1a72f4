"""XID 79, or a lost GPU, again: the board has to be held, since the fault recurs. Source: NVIDIA's catalogue."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.repeats.repeat import NVIDIA, Repeat, Seen, comes_again
from health.xid.kernel_log import OFF_THE_BUS
from muster.domain.evidence.findings import Severity

NAME: Final = "bus_repeats"
HOLD: Final = "bus_repeats:hold"
_CODES: Final = (OFF_THE_BUS,)


def judge(seen: Seen) -> Findings:
    times = comes_again(seen, seen.policy.detectors.bus_repeats, _CODES)
    if not times:
        return NO_FINDINGS
    words = f"off the bus (XID 79) {times} times: hold the board, the fault recurs"
    return (seen.found(NAME, Severity.CONDEMNING, words, key="hold"),)


RULE: Final = Repeat(NAME, judge, About("XID 79, or a lost GPU, again", NVIDIA, Severity.CONDEMNING))
