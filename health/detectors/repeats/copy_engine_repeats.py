"""An XID of a copy engine again on one GPU alone.

Source: NVIDIA's catalogue asks for a restart of the program, and for a diagnosis where that does not help.
"""

from typing import Final

from health.detectors.detector import About, Findings
from health.detectors.repeats import one_gpu_alone
from health.detectors.repeats.repeat import NVIDIA, Repeat, Seen
from muster.domain.evidence.findings import Severity

NAME: Final = "copy_engine_repeats"
COPY_ENGINES: Final = frozenset({*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)})
"""XIDs of copy engines (NVIDIA's catalogue; 126 to 135 of Blackwell)."""


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.copy_engine_repeats
    return one_gpu_alone.judge(seen, NAME, rule, COPY_ENGINES, "an XID of a copy engine")


RULE: Final = Repeat(NAME, judge, About("an XID of a copy engine again on one GPU alone", NVIDIA, Severity.INFO))
