"""Uncorrected ECC errors that a board has counted in its life, at the first sight of a GPU.

Source: Azure fails a node for an aggregate count. Their time is unknown, and whether rows were remapped since, so it is
a warning that orders a burn-in (``health.burn_in.requested_by``). Later rises are findings of ``ecc_uncorrected``.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading, SampleDetector
from health.detectors.memory.ecc_uncorrected import AGGREGATE, VOLATILE, is_first_sight
from muster.domain.evidence.findings import Severity
from muster.domain.policy.health import HealthPolicy

NAME: Final = "ecc_history"
ABOUT: Final = About(
    "a board has counted uncorrected ECC errors in its life, at first sight: a burn-in shows its present state",
    "Azure; the warning is our own choice",
    Severity.WARNING,
)


def judge(reading: Reading, policy: HealthPolicy) -> Findings:
    """Return the finding, none where the errors are of this driver's time: such errors condemn by themselves."""
    values = reading.sample.values
    total = values[AGGREGATE]
    if not total or values[VOLATILE] or not is_first_sight(reading):
        return NO_FINDINGS
    words = (
        f"{total:.0f} uncorrected ECC error{'s' if total > 1 else ''} in the board's life, none since its driver was"
        " loaded: seen for the first time, to be burnt in"
    )
    return (reading.finding(NAME, NAME, Severity.WARNING, policy, words, reads=AGGREGATE, values={"errors": total}),)


DETECTOR: Final = SampleDetector(NAME, 1, judge, is_standing=False, about=ABOUT)
