"""Rows remapped after correctable errors: no program read wrong data, but the memory is about to fail.

Source: SuperBench. 5.6 % of nodes with 1 to 10 such rows show a regression later, and 83.3 % of nodes with more. A rise
is kept and weighs nothing up to 10 in a board's life; past it each rise is to be watched. More than 10 within a week
are too many at once (``repeats``).
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, Reading, SampleDetector
from health.detectors.memory.ecc_uncorrected import rise_of
from muster.domain.evidence.findings import Severity
from muster.domain.gpu.metrics import INDEX
from muster.domain.policy.health import HealthPolicy

NAME: Final = "corrected_remaps"
FEW: Final = "corrected_remaps:few"
MANY: Final = "corrected_remaps:many"
RATE: Final = "rate"
ROWS: Final = "rows"
"""Key in ``values``: by how many rows the reading rose."""
READING: Final = INDEX["remapped_rows_corrected"]
ABOUT: Final = About(
    "rows remapped after correctable errors: past 10 in a board's life (warning); more than 10 in a week (degraded)",
    "SuperBench",
    Severity.DEGRADED,
)


def judge(reading: Reading, policy: HealthPolicy) -> Findings:
    previous, total = reading.previous, reading.sample.values[READING]
    if previous is None or total is None:
        return NO_FINDINGS
    rise = rise_of(previous.values[READING], total)
    if rise <= 0:
        return NO_FINDINGS
    is_many = total > policy.detectors.corrected_remaps.rows_max
    words = f"{rise:.0f} more row{'s' if rise > 1 else ''} remapped after correctable errors, {total:.0f} in all"
    key, severity = (MANY, Severity.WARNING) if is_many else (FEW, Severity.INFO)
    return (reading.finding(NAME, key, severity, policy, words, reads=READING, values={ROWS: rise}),)


DETECTOR: Final = SampleDetector(NAME, 1, judge, is_standing=False, about=ABOUT)
