"""Too many rows within a week among the rises that ``corrected_remaps`` counted. Source: SuperBench."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.memory import corrected_remaps
from health.detectors.repeats.repeat import Repeat, Seen
from health.evidence.index import of_detector
from muster.domain.evidence.findings import Severity


def judge(seen: Seen) -> Findings:
    rule = seen.policy.detectors.corrected_remaps
    if seen.newest.detector != corrected_remaps.NAME or corrected_remaps.ROWS not in seen.newest.values:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, of_detector(corrected_remaps.NAME))
    rows = sum(each.values.get(corrected_remaps.ROWS, 0.0) for each in alike)
    if rows <= rule.rows_max:
        return NO_FINDINGS
    words = f"{rows:.0f} rows remapped after correctable errors within {rule.window_s / 86_400:g} days"
    return (seen.found(corrected_remaps.NAME, Severity.DEGRADED, words, key=corrected_remaps.RATE),)


RULE: Final = Repeat(corrected_remaps.NAME, judge, corrected_remaps.ABOUT)
