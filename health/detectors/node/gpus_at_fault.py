"""Condemning evidence about two or more GPUs of one node about the same time: a part that they share may be broken.

Source: the rule that a node is blocked where a fault's scope is node, fabric, network card or two GPUs and more; Meta
finds lemons by node for the same reason. Each GPU is still judged for itself: this keeps new work off the others. The
fault is a state: it is over once fewer GPUs are condemned, by proof, repair or dismissal.
"""

from collections.abc import Iterable
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Closing, Findings, counts_for_ms
from health.detectors.modes import in_mode
from muster.domain.evidence.findings import Evidence, Finding, Severity, Source, Trust
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy

NAME: Final = "gpus_at_fault"
VERSION: Final = 1
GPUS: Final = "gpus"
"""Key in ``values``: the number of GPUs."""
ABOUT: Final = About(
    "2 GPUs of one node or more have condemning evidence within a day of each other",
    "our own numbers",
    Severity.DEGRADED,
)


def judge(node_id: NodeId, condemning: Iterable[Evidence], policy: HealthPolicy, now_ms: int) -> Findings:
    """Return the finding. ``condemning``: evidence that condemns the GPUs on the node now, each by its own proofs.

    A further GPU is another fault: a person who has released the node for two has not seen the third.
    """
    rule, newest = policy.detectors.gpus_at_fault, dict[GpuUuid, Evidence]()
    for each in condemning:
        if each.gpu_uuid is not None and _is_later(each, newest.get(each.gpu_uuid)):
            newest[each.gpu_uuid] = each
    last_ms = max((each.last_seen_ms for each in newest.values()), default=0)
    near = [each for each in newest.values() if last_ms - each.last_seen_ms <= rule.window_s * 1000]
    if len(near) < rule.gpus:
        return NO_FINDINGS
    near.sort(key=lambda each: (each.last_seen_ms, each.id))
    words = "; ".join(f"{each.gpu_uuid}: {each.summary}" for each in near)
    finding = Finding(
        detector=NAME,
        version=VERSION,
        fault_key=f"{NAME}:{len(near)}",
        gpu_uuid=None,
        node_id=node_id,
        severity=Severity.DEGRADED,
        trust=Trust.MEASURED,
        source=Source.AGENT,
        onset_ms=now_ms,
        counts_for_ms=counts_for_ms(Severity.DEGRADED, policy, NAME),
        summary=f"{len(near)} GPUs of this node are at fault: {words}",
        values={GPUS: float(len(near))},
    )
    return in_mode((finding,), policy)


def news(
    node_id: NodeId, condemning: Iterable[Evidence], reported: Iterable[Evidence], policy: HealthPolicy, now_ms: int
) -> tuple[Finding | Closing, ...]:
    """Return the findings that are new or were last stated ``restate_s`` ago, and the closings of ended faults.

    ``reported``: evidence of this rule about the node, open or not.
    """
    found = judge(node_id, condemning, policy, now_ms)
    told_ms = {each.fault_key: each.last_seen_ms for each in reported if each.closed_at_ms is None}
    again_ms = now_ms - int(policy.evidence.restate_s * 1000)
    due = tuple(each for each in found if told_ms.get(each.fault_key, again_ms) <= again_ms)
    over = sorted(told_ms.keys() - {each.fault_key for each in found})
    return (*due, *(Closing(key, node_id, None, now_ms) for key in over))


def _is_later(evidence: Evidence, than: Evidence | None) -> bool:
    return than is None or (evidence.last_seen_ms, evidence.id) > (than.last_seen_ms, than.id)
