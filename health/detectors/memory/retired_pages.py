"""Pages of memory taken out of use, on boards from before Ampere. Source: DCGM.

63 pages in total use a board up. So do more than 15 after double-bit errors, where more than one of them came within a
week: each number of such pages is kept as evidence that weighs nothing, and is compared with the oldest of the week
(``repeats``).
"""

from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.detectors.readings import has
from muster.domain.evidence.findings import EventKind, Finding, GpuSignal, Severity
from muster.domain.evidence.traits import Nature
from muster.domain.policy.health import HealthPolicy

NAME: Final = "retired_pages"
USED_UP: Final = "retired_pages:used_up"
PENDING: Final = "retired_pages:pending"
WEEK: Final = "retired_pages:week"
DOUBLE_BIT: Final = "retired_pages:double_bit:"
PAGES: Final = "double_bit_pages"
ABOUT: Final = About(
    "63 pages retired, or more than 15 after double-bit errors and more than 1 of them in a week (condemning); some"
    " wait for a reset (degraded)",
    "DCGM",
    Severity.CONDEMNING,
)


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    values, found = signal.values, list[Finding]()
    double = values.get("retired_pages_double_bit", 0)
    pages = double + values.get("retired_pages_single_bit", 0)
    if pages >= policy.detectors.retired_pages.pages_max:
        words = f"{pages:.0f} pages of memory are retired: the board is used up"
        found.append(signal_finding(NAME, signal, USED_UP, Severity.CONDEMNING, policy, words, values={"pages": pages}))
    if double > 0:
        words = f"{double:.0f} pages of memory are retired after double-bit errors"
        key = f"{DOUBLE_BIT}{double:.0f}"
        found.append(signal_finding(NAME, signal, key, Severity.INFO, policy, words, values={PAGES: double}))
    if values.get("retired_pages_pending", 0) > 0:
        words = "retired pages of memory wait for a GPU reset"
        found.append(signal_finding(NAME, signal, PENDING, Severity.DEGRADED, policy, words))
    return tuple(found) or NO_FINDINGS


def handles(signal: GpuSignal) -> tuple[str, ...]:
    """Return the fault keys.

    ``WEEK``, of repetitions, is over only for a board without any such page: the others stay.
    """
    told = (USED_UP,) if has(signal, "retired_pages_double_bit", "retired_pages_single_bit") else ()
    week = (WEEK,) if signal.values.get("retired_pages_double_bit") == 0 else ()
    return (*told, *week, PENDING) if has(signal, "retired_pages_pending") else (*told, *week)


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.GPU_STATE,), ABOUT, Nature.STATE, handles)
