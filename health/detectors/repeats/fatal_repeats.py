"""Bursts of XIDs that condemn, 5 in a day: the board has to be held. Source: NVSentinel's analyzer."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings
from health.detectors.repeats.repeat import NVSENTINEL, Repeat, Seen, num_bursts
from health.evidence.index import WORSE_THAN_INFO
from health.evidence.state import code_of
from muster.domain.evidence.findings import Evidence, Severity

NAME: Final = "fatal_repeats"
HOLD: Final = "fatal_repeats:hold"


def _is_fatal(evidence: Evidence) -> bool:
    return evidence.severity is Severity.CONDEMNING and code_of(evidence) is not None


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.fatal_repeats
    if not _is_fatal(seen.newest):
        return NO_FINDINGS
    fatal = seen.alike(rule.window_s, WORSE_THAN_INFO, _is_fatal)
    times = num_bursts(fatal, seen.policy, int(rule.gap_s * 1000))
    if times < rule.times:
        return NO_FINDINGS
    words = f"{times} bursts of fatal XIDs in {rule.window_s / 3600:g} h: hold the board"
    return (seen.found(NAME, Severity.CONDEMNING, words, key="hold"),)


RULE: Final = Repeat(NAME, judge, About("5 bursts of fatal XIDs in a day", NVSENTINEL, Severity.CONDEMNING))
