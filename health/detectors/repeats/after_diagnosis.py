"""A program's XIDs that recur after a passed diagnosis: first a warning, and of several programs the GPU's own fault.

XIDs 13 and 31 and the XIDs of copy engines are mostly a program's. If they recur on one GPU alone, a rule orders a
diagnosis (``burn_in.requested_by``). NVIDIA's workflow has a next step where that diagnosis passes and the errors
continue: the fault is one that the diagnosis does not find, and the field diagnosis follows.

One program that crashes wherever it runs is still possible, so its errors only warn. Programs of several tenants, or of
several images, have the GPU alone in common::

    XID 31  XID 31  burn-in passed  XID 31  XID 31  XID 31
    ten_a   ten_b                   ten_a   ten_c   ten_d
            INFO: to be diagnosed           WARNING DEGRADED: 3 tenants since the diagnosis began

The control plane marks an event with tenant and image of the attempt that held the GPU. In records of other systems a
text may name the process instead.

Source: NVIDIA's workflows for XID 13 and XID 31.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.gpu.xid import PROGRAM_MARKS
from health.detectors.repeats import special_rules
from health.detectors.repeats.repeat import TIMES, Seen, num_bursts, of_codes
from health.evidence.index import of_code_at, of_detector, place_in_gpu
from health.evidence.state import code_of
from health.xid.error_text import MMU_FAULT, SM_EXCEPTION
from muster.domain.evidence.findings import Evidence, Severity

NAME: Final = "repeats_after_diagnosis"
OF_PROGRAMS: Final = f"{NAME}:programs"
MMU_FAULTS: Final = "mmu_fault_repeats"
COPY_ENGINE_FAULTS: Final = "copy_engine_repeats"
COPY_ENGINES: Final = frozenset({*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)})
"""XIDs of copy engines (NVIDIA's catalogue; 126 to 135 of Blackwell)."""
_ORDERED_BY: Final[Mapping[int, str]] = {
    MMU_FAULT: MMU_FAULTS,
    SM_EXCEPTION: special_rules.SM_EXCEPTIONS,
    **dict.fromkeys(COPY_ENGINES, COPY_ENGINE_FAULTS),
}
"""XID → the rule that orders a diagnosis when it recurs."""


def judge(seen: Seen) -> Findings:
    """Return the finding about the XIDs since the newest passed diagnosis that such XIDs ordered."""
    code = code_of(seen.newest)
    ordered_by = None if code is None else _ORDERED_BY.get(code)
    if code is None or ordered_by is None or not _recurs(seen, ordered_by):
        return NO_FINDINGS
    rule, began_ms = seen.policy.detectors.repeats_after_diagnosis, seen.diagnosed_ms()
    if began_ms is None or not _was_ordered(seen, ordered_by, began_ms):
        return NO_FINDINGS
    since = [each for each in _alike(seen, code, rule.window_s) if each.onset_ms > began_ms]
    times = num_bursts(since, seen.policy)
    if times < rule.times or _is_shown_elsewhere(seen, code, rule.window_s):
        return NO_FINDINGS
    programs = num_programs(since)
    recurred = f"XID {code} {times} times after a passed diagnosis, on this GPU alone"
    values = {TIMES: float(times)}
    if programs < rule.programs:
        return (seen.found(NAME, Severity.WARNING, f"{recurred}: the program or the GPU", values=values),)
    words = f"{recurred}, of {programs} tenants or images: the field diagnosis is next"
    return (seen.found(NAME, Severity.DEGRADED, words, key="programs", values=values),)


def num_programs(evidence: Sequence[Evidence]) -> int:
    """Return the number of different tenants, of different images, or of different processes, whichever is highest."""
    return max(len({each.values[mark] for each in evidence if mark in each.values}) for mark in PROGRAM_MARKS)


def _recurs(seen: Seen, ordered_by: str) -> bool:
    """Return whether the rule that orders a diagnosis has found anything: most program errors end here."""
    return bool(seen.known.on(of_detector(ordered_by)))


def _was_ordered(seen: Seen, ordered_by: str, began_ms: int) -> bool:
    """Return whether the diagnosis began after such a finding, and within the window of it."""
    window_ms = int(seen.policy.detectors.repeats_after_diagnosis.window_s * 1000)
    orders = seen.known.on(of_detector(ordered_by))
    return any(each.onset_ms <= began_ms <= each.last_seen_ms + window_ms for each in orders)


def _alike(seen: Seen, code: int, window_s: float) -> list[Evidence]:
    """Return the XIDs that count together: of the same TPC for 13, of any copy engine, else of the same code."""
    if code == SM_EXCEPTION:
        return seen.alike(window_s, of_code_at(code, place_in_gpu(seen.newest)))
    return of_codes(seen, window_s, COPY_ENGINES if code in COPY_ENGINES else (code,))


def _is_shown_elsewhere(seen: Seen, code: int, window_s: float) -> bool:
    """Return whether another GPU of the node shows it too, so that the program is the cause."""
    codes = COPY_ENGINES if code in COPY_ENGINES else (code,)
    since_ms = seen.newest.last_seen_ms - int(window_s * 1000)
    return any(each.last_seen_ms > since_ms and code_of(each) in codes for each in seen.elsewhere())
