"""Evidence about a node (its ports, its fabric, its host) that keeps new work off it, and until when."""

from collections.abc import Iterable

from health.evidence.state import counts, is_open
from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy, RuleCordonPolicy


def holding(evidence: Iterable[Evidence], policy: HealthPolicy, now_ms: int) -> tuple[Evidence, ...]:
    """Return the evidence that keeps work off the node now: measured, DEGRADED or worse, and open.

    The worst and oldest is first. A state counts until another state is reported, a rate and a moment for their time
    after they were last stated. Evidence about a GPU keeps that GPU out by its standing, never the node.
    """
    if not policy.rule_cordon.is_on:
        return ()
    found = (each for each in evidence if _holds(each, policy.rule_cordon, now_ms))
    return tuple(sorted(found, key=lambda each: (-each.severity, each.onset_ms, each.id)))


def _holds(evidence: Evidence, policy: RuleCordonPolicy, now_ms: int) -> bool:
    if evidence.gpu_uuid is not None or evidence.trust is not Trust.MEASURED or evidence.counts_for_ms == 0:
        return False
    if evidence.severity < Severity.DEGRADED or not counts(evidence) or not is_open(evidence):
        return False
    return now_ms - evidence.last_seen_ms < _lasts_s(evidence.traits.nature, policy) * 1000


def cordoned_until_ms(evidence: Evidence, policy: HealthPolicy) -> int:
    """Return until when evidence keeps work off its node, if it is not stated again."""
    return evidence.last_seen_ms + int(_lasts_s(evidence.traits.nature, policy.rule_cordon) * 1000)


def lookback_ms(policy: HealthPolicy) -> int:
    """Return the age from which on evidence keeps work off no node."""
    hold = policy.rule_cordon
    return int(max(hold.state_fault_s, hold.rate_fault_s, hold.event_fault_s) * 1000)


def _lasts_s(nature: Nature, policy: RuleCordonPolicy) -> float:
    match nature:
        case Nature.STATE | Nature.STANDING:
            return policy.state_fault_s
        case Nature.RATE | Nature.REPEAT:
            return policy.rate_fault_s
        case _:
            return policy.event_fault_s
