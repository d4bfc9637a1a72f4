"""Each rule's mode: on, in shadow, or off."""

from typing import Final

from health.detectors.detector import Findings
from health.evidence.suppression import SHADOW, aside
from muster.domain.policy.health import HealthPolicy

PEERS: Final = "peers"
"""The one rule whose numbers stand beside ``health.detectors``, as ``health.peers``."""


def in_mode(findings: Findings, policy: HealthPolicy) -> Findings:
    """Without what rules found that are off; what those in shadow found weighs nothing."""
    if not findings:
        return findings
    told = []
    for finding in findings:
        rule = policy.peers if finding.detector == PEERS else getattr(policy.detectors, finding.detector, None)
        if rule is None or rule.mode == "on":
            told.append(finding)
        elif rule.mode == "shadow":
            told.append(aside(finding, SHADOW))
    return tuple(told)
