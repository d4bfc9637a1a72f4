"""XID 45 alone: channels were cleaned up, and no other XID states the cause.

Source: NVIDIA's catalogue, which asks for a restart of the fabric manager where nothing else shows a fault. Together
with another XID it is that one's clean-up, and no fault by itself; so it is too if its own text states that it follows
errors. A program that is ended causes it as well, so it is stated, with that advice, and weighs nothing.
"""

from collections.abc import Iterable
from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.gpu.xid import FOLLOWS_ERRORS
from health.detectors.repeats.repeat import Seen
from health.evidence.index import EVERYTHING, EvidenceIndex, of_detector
from health.evidence.state import CODE
from health.evidence.suppression import suppressed
from health.xid.error_text import CLEANUP
from muster.domain.evidence.findings import Evidence, Severity, Suppression
from muster.domain.policy.health import HealthPolicy

NAME: Final = "cleanup_alone"


def judge(seen: Seen) -> Findings:
    """Return the finding for an XID 45 without another XID near it among all evidence of its GPU."""
    newest = seen.newest
    if newest.values.get(CODE) != CLEANUP or FOLLOWS_ERRORS in newest.values:
        return NO_FINDINGS
    apart_ms = _apart_ms(seen.policy)
    near = seen.known.on(EVERYTHING, newest.last_seen_ms - apart_ms)
    if any(_is_another_xid(each) and _are_near(each, newest.last_seen_ms, apart_ms) for each in near):
        return NO_FINDINGS
    words = "XID 45 alone: a program was ended; if none was, restart the fabric manager (NVIDIA)"
    return (seen.found(NAME, Severity.INFO, words),)


def explained_by(newest: Evidence, known: EvidenceIndex, policy: HealthPolicy) -> Iterable[Evidence]:
    """Return evidence of a lone XID 45 that is the clean-up after the ``newest``, which was stated a moment later."""
    if not _is_another_xid(newest):
        return ()
    apart_ms = _apart_ms(policy)
    return tuple(
        suppressed(each, Suppression.FOLLOWS)
        for each in known.on(of_detector(NAME), newest.onset_ms - apart_ms)
        if each.gpu_uuid == newest.gpu_uuid
        and Suppression.FOLLOWS not in each.suppressed_by
        and _are_near(newest, each.last_seen_ms, apart_ms)
    )


def _apart_ms(policy: HealthPolicy) -> int:
    return int(policy.detectors.cleanup_alone.window_s * 1000)


def _is_another_xid(evidence: Evidence) -> bool:
    return evidence.values.get(CODE, CLEANUP) != CLEANUP


def _are_near(evidence: Evidence, at_ms: int, apart_ms: int) -> bool:
    return evidence.onset_ms - apart_ms <= at_ms <= evidence.last_seen_ms + apart_ms
