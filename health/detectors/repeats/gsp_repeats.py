"""XIDs 119 and 120: the second shows that a reset did not last, the third that the board has to be held.

Source: NVIDIA's catalogue.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.repeats.repeat import NVIDIA, Repeat, Seen, num_bursts, of_codes
from health.evidence.state import code_of
from muster.domain.evidence.findings import Severity

NAME: Final = "gsp_repeats"
HOLD: Final = "gsp_repeats:hold"
REBOOT: Final = "gsp_repeats:reboot"
"""A warning in addition to the fault: its reset did not last."""
_CODES: Final = (119, 120)


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.gsp_repeats
    if code_of(seen.newest) not in _CODES:
        return NO_FINDINGS
    times = num_bursts(of_codes(seen, rule.window_s, _CODES), seen.policy)
    if times >= rule.times:
        words = f"XID 119 or 120 {times} times: hold the board, resets and reboots do not last"
        return (seen.found(NAME, Severity.CONDEMNING, words, key="hold"),)
    if times == rule.times - 1 and times > 1:
        words = f"XID 119 or 120 {times} times: reboot the node, a reset did not last"
        return (seen.found(NAME, Severity.WARNING, words, key="reboot"),)
    return NO_FINDINGS


RULE: Final = Repeat(NAME, judge, About("XID 119 or 120 again (warning), and again", NVIDIA, Severity.CONDEMNING))
