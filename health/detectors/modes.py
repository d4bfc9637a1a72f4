"""Each rule's mode: on, in shadow, or off."""

from typing import Final

from health.detectors.detector import Findings
from health.evidence.suppression import aside
from muster.domain.evidence.findings import Suppression
from muster.domain.policy.health import HealthPolicy

PEERS: Final = "peers"
"""The one rule whose numbers are not under ``health.detectors`` but in ``health.peers``."""


def in_mode(findings: Findings, policy: HealthPolicy) -> Findings:
    """Return the findings of rules that are not off; findings of rules in shadow weigh nothing."""
    if not findings:
        return findings
    told = []
    for finding in findings:
        rule = policy.peers if finding.detector == PEERS else getattr(policy.detectors, finding.detector, None)
        if rule is None or rule.mode == "on":
            told.append(finding)
        elif rule.mode == "shadow":
            told.append(aside(finding, Suppression.SHADOW))
    return tuple(told)
