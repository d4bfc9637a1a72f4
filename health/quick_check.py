"""The finding of a quick check: a GEMM over small whole numbers has one exact answer, and a GPU gave another.

As with a burn-in's partial sums (``burn_in``), any other answer is a wrong result of our own measurement; it condemns.
"""

from typing import Final

from health.detectors.detector import counts_for_ms
from muster.domain.evidence.findings import Finding, Severity, Source, Trust
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.health import HealthPolicy

NAME: Final = "quick_check"
VERSION: Final = 1
_MOST_NAMED: Final = 3


def finding_of(
    gpu_uuid: GpuUuid, node_id: NodeId, wrong: list[tuple[str, int, int]], at_ms: int, policy: HealthPolicy
) -> Finding:
    """Return the finding. ``wrong``: name of each sum, its exact value and the measured one; at least one."""
    named = "; ".join(f"{name}: {measured} instead of {golden}" for name, golden, measured in wrong[:_MOST_NAMED])
    more = "" if len(wrong) <= _MOST_NAMED else f" and {len(wrong) - _MOST_NAMED} more"
    return Finding(
        detector=NAME,
        version=VERSION,
        fault_key=f"{NAME}:wrong_result",
        gpu_uuid=gpu_uuid,
        node_id=node_id,
        severity=Severity.CONDEMNING,
        trust=Trust.MEASURED,
        source=Source.QUICK_CHECK,
        onset_ms=at_ms,
        counts_for_ms=counts_for_ms(Severity.CONDEMNING, policy, NAME),
        summary=f"wrong results in the quick check before a start: {named}{more}",
        threatens_correctness=True,
    )
