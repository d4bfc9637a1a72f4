"""Several times of one fault in one evidence: which times are merged, and which count as another time."""

from typing import Final

from health.detectors.gpu import xid
from health.detectors.gpu.xid import PROGRAM_MARKS
from health.detectors.registry import NATURES
from health.detectors.repeats.repeat import BURST_MS
from health.evidence.index import PLACE_IN_GPU
from health.evidence.state import CODE
from muster.domain.evidence.findings import Evidence, Finding, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

IDENTIFYING: Final = (CODE, *PLACE_IN_GPU)
"""Keys in ``values`` that identify the fault and its place in the GPU."""


def is_of_its_burst(finding: Finding, evidence: Evidence, policy: HealthPolicy) -> bool:
    """Return whether it is an XID that a program causes at will, repeated by its source, at its place, by one program.

    Such evidence continues for a burst's gap from its onset, and without limit while the next follows within 15 s,
    which every rule counts as one time: the evidence counts its times itself. So a job that crashes repeatedly leaves
    one row in three minutes, not one for each crash. Evidence that weighs, or that a person has answered, is left as it
    is.
    """
    if finding.detector != xid.NAME or finding.severity is not Severity.INFO or finding.source not in evidence.sources:
        return False
    if (evidence.detector, evidence.severity, evidence.node_id) != (xid.NAME, Severity.INFO, finding.node_id):
        return False
    if evidence.is_dismissed or evidence.is_suspended or evidence.fault_key != finding.fault_key:
        return False
    if any(evidence.values.get(name) != finding.values.get(name) for name in (*IDENTIFYING, *PROGRAM_MARKS)):
        return False
    gap_ms = int(policy.detectors.fatal_repeats.gap_s * 1000)
    until_ms = max(evidence.onset_ms + gap_ms, evidence.last_seen_ms + BURST_MS)
    return evidence.onset_ms <= finding.onset_ms <= until_ms


def is_another_time(evidence: Evidence, finding: Finding) -> bool:
    """Return whether the finding is a further time that counts.

    Such is a rate again, or a program's XID after the pause that ends a burst.
    """
    if NATURES.get(finding.detector) is Nature.RATE:
        return finding.onset_ms > evidence.last_seen_ms
    is_moment = finding.detector == evidence.detector == xid.NAME and evidence.severity is Severity.INFO
    is_told_again = finding.source in evidence.sources and finding.onset_ms - evidence.last_seen_ms > BURST_MS
    return is_moment and is_told_again
