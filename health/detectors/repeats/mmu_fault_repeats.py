"""XID 31 again on one GPU alone. Source: NVSentinel's analyzer."""

from typing import Final

from health.detectors.detector import About, Findings
from health.detectors.repeats import one_gpu_alone
from health.detectors.repeats.repeat import NVSENTINEL, Repeat, Seen
from muster.domain.evidence.findings import Severity

NAME: Final = "mmu_fault_repeats"


def judge(seen: Seen) -> Findings:
    return one_gpu_alone.judge(seen, NAME, seen.policy.detectors.mmu_fault_repeats, (31,), "XID 31")


RULE: Final = Repeat(NAME, judge, About("XID 31 again on one GPU alone", NVSENTINEL, Severity.INFO))
