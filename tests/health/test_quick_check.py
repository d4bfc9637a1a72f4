"""What a quick check found of a GPU."""

from health.quick_check import finding_of
from muster.domain.evidence.findings import Severity, Source, Trust
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY


def test_a_wrong_sum_condemns_and_is_reported_in_figures() -> None:
    wrong = [(f"fp32 rows {number}/8", 10, 11) for number in range(1, 6)]
    finding = finding_of(GpuUuid("GPU-1"), NodeId("node_1"), wrong, 5_000, DEFAULT_POLICY.health)
    assert (finding.severity, finding.trust, finding.source) == (
        Severity.CONDEMNING, Trust.MEASURED, Source.QUICK_CHECK,
    )  # fmt: skip
    assert finding.threatens_correctness
    assert finding.onset_ms == 5_000
    assert "fp32 rows 1/8: 11 instead of 10" in finding.summary
    assert finding.summary.endswith("and 2 more")
