"""Row remapping. Source: NVIDIA's memory error guide; DCGM for the limit of uncorrected rows.

A pending remap needs a reset; running programs may end first. After a failed remap, or too many, the board has to be
replaced.
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading, SampleDetector
from health.detectors.memory.ecc_uncorrected import rise_of
from muster.domain.evidence.findings import Finding, Severity
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy

NAME: Final = "row_remap"
RISE: Final = "row_remap_rise"
PENDING: Final = "row_remap:pending"
FAILURE: Final = "row_remap:failure"
EXHAUSTED: Final = "row_remap:exhausted"
REMAPPED: Final = "row_remap:uncorrected"
PENDING_READING: Final = INDEX["remap_pending"]
FAILURE_READING: Final = INDEX["remap_failure"]
UNCORRECTED: Final = INDEX["remapped_rows_uncorrected"]


def judge(reading: Reading, policy: HealthPolicy) -> Findings:
    """Return the standing faults: a remap pending, failed, or too many of them."""
    values = reading.sample.values
    rows = values[UNCORRECTED]
    is_exhausted = rows is not None and rows >= policy.row_remap.uncorrected_rows_max
    if not (values[PENDING_READING] or values[FAILURE_READING] or is_exhausted):
        return NO_FINDINGS
    found: list[Finding] = []
    if values[FAILURE_READING]:
        words = "a row remap failed: the board is to be replaced"
        found.append(
            reading.finding(
                NAME, FAILURE, Severity.CONDEMNING, policy, words, reads=FAILURE_READING, threatens_correctness=True
            )
        )
    if is_exhausted and rows is not None:
        words = f"{rows:.0f} rows remapped after uncorrectable errors: the board is used up"
        told = {"rows": rows}
        found.append(
            reading.finding(NAME, EXHAUSTED, Severity.CONDEMNING, policy, words, reads=UNCORRECTED, values=told)
        )
    if values[PENDING_READING]:
        words = "a row remap waits for a GPU reset"
        found.append(reading.finding(NAME, PENDING, Severity.DEGRADED, policy, words, reads=PENDING_READING))
    return tuple(found)


def judge_rise(reading: Reading, policy: HealthPolicy) -> Findings:
    """Return a finding about newly remapped rows after uncorrectable errors: to be watched.

    The error itself is ``ecc_uncorrected``'s.
    """
    previous = reading.previous
    if previous is None:
        return NO_FINDINGS
    rise = rise_of(previous.values[UNCORRECTED], reading.sample.values[UNCORRECTED])
    if rise <= 0:
        return NO_FINDINGS
    words = f"{rise:.0f} more row{'s' if rise > 1 else ''} remapped after uncorrectable errors"
    told = {"rows": rise}
    return (reading.finding(RISE, REMAPPED, Severity.WARNING, policy, words, reads=UNCORRECTED, values=told),)


ABOUT: Final = About(
    "a row remap waits for a reset (degraded), failed, or used the board up", "DCGM; NVIDIA guide", Severity.CONDEMNING
)
RISE_ABOUT: Final = About("rows were newly remapped after uncorrectable errors", "NVIDIA guide", Severity.WARNING)
DETECTOR: Final = SampleDetector(NAME, 1, judge, is_standing=True, about=ABOUT)
RISE_DETECTOR: Final = SampleDetector(RISE, 1, judge_rise, is_standing=False, about=RISE_ABOUT)
