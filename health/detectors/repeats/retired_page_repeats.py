"""More than one double-bit page within a week among the pages that ``retired_pages`` counted. Source: DCGM."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.memory import retired_pages
from health.detectors.repeats.repeat import Repeat, Seen
from health.evidence.index import of_detector
from muster.domain.evidence.findings import Severity


def judge(seen: Seen) -> Findings:
    newest, rule = seen.newest, seen.policy.detectors.retired_pages
    pages = newest.values.get(retired_pages.PAGES)
    if pages is None or pages <= rule.double_bit_pages:
        return NO_FINDINGS
    shelf = of_detector(retired_pages.NAME)
    alike = seen.alike(rule.window_s, shelf, lambda each: retired_pages.PAGES in each.values)
    rise = pages - min(each.values[retired_pages.PAGES] for each in alike)
    if rise <= 1:
        return NO_FINDINGS
    words = f"{pages:.0f} pages retired after double-bit errors, {rise:.0f} of them in a week: the board is used up"
    return (seen.found(retired_pages.NAME, Severity.CONDEMNING, words, key="week"),)


RULE: Final = Repeat(retired_pages.NAME, judge, retired_pages.ABOUT)
