"""Repairs on one node, again and again: called when a repair begins. Source: NVSentinel's analyzer."""

from collections.abc import Iterable
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, counts_for_ms
from health.detectors.modes import in_mode
from health.detectors.repeats.repeat import NVSENTINEL, TIMES, VERSION
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import NodeId
from muster.domain.policy.health import HealthPolicy

NAME: Final = "repair_repeats"
ABOUT: Final = About("5 repairs on one node in 7 days", NVSENTINEL, Severity.DEGRADED)


def repairs_of(node_id: NodeId, began_ms: Iterable[int], policy: HealthPolicy, now_ms: int) -> Findings:
    """Return the finding about a repair that begins on a node.

    ``began_ms``: repairs of any of its GPUs, the new one too.
    """
    rule = policy.detectors.repair_repeats
    times = sum(now_ms - int(rule.window_s * 1000) < at_ms <= now_ms for at_ms in began_ms)
    if times < rule.times:
        return NO_FINDINGS
    words = f"{times} repairs on this node in {rule.window_s / 86_400:g} days: the host itself may be broken"
    finding = Finding(
        detector=NAME,
        version=VERSION,
        fault_key=NAME,
        gpu_uuid=None,
        node_id=node_id,
        severity=Severity.DEGRADED,
        trust=Trust.MEASURED,
        source=Source.AGENT,
        onset_ms=now_ms,
        counts_for_ms=counts_for_ms(Severity.DEGRADED, policy, NAME),
        summary=words,
        values={TIMES: float(times)},
    )
    return in_mode((finding,), policy)
