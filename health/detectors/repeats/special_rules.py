"""Rules about repetitions that no shape of ``shapes`` fits; ``rules`` has them as rows."""

from typing import Final

from health.detectors.detector import NO_FINDINGS, Findings
from health.detectors.memory import corrected_remaps, retired_pages
from health.detectors.node import nic_driver
from health.detectors.repeats.repeat import TIMES, Seen, num_bursts, of_codes
from health.detectors.repeats.shapes import HOLD
from health.evidence.index import WORSE_THAN_INFO, of_code_at, of_detector, place_in_gpu
from health.evidence.state import code_of
from health.xid.error_text import SM_EXCEPTION
from muster.domain.evidence.findings import Evidence, Severity

GSP: Final = "gsp_repeats"
GSP_REBOOT: Final = "gsp_repeats:reboot"
"""A warning in addition to the fault: its reset did not last."""
FATAL: Final = "fatal_repeats"
SM_EXCEPTIONS: Final = "sm_exception_repeats"
NIC_DRIVER: Final = "nic_driver_repeats"
_GSP_CODES: Final = (119, 120)


def gsp(seen: Seen) -> Findings:
    """Return the finding of XID 119 or 120, none before the second time.

    The second time means that a reset did not last, the third that the board has to be held.
    """
    rule = seen.policy.detectors.gsp_repeats
    if code_of(seen.newest) not in _GSP_CODES:
        return NO_FINDINGS
    times = num_bursts(of_codes(seen, rule.window_s, _GSP_CODES), seen.policy)
    if times >= rule.times:
        words = f"XID 119 or 120 {times} times: hold the board, resets and reboots do not last"
        return (seen.found(GSP, Severity.CONDEMNING, words, key=HOLD),)
    if times == rule.times - 1 and times > 1:
        words = f"XID 119 or 120 {times} times: reboot the node, a reset did not last"
        return (seen.found(GSP, Severity.WARNING, words, key="reboot"),)
    return NO_FINDINGS


def fatal(seen: Seen) -> Findings:
    """Return that the board is to be held after bursts of any XIDs that condemn."""
    rule = seen.policy.detectors.fatal_repeats
    if not _is_fatal(seen.newest):
        return NO_FINDINGS
    bursts = seen.alike(rule.window_s, WORSE_THAN_INFO, _is_fatal)
    times = num_bursts(bursts, seen.policy, int(rule.gap_s * 1000))
    if times < rule.times:
        return NO_FINDINGS
    words = f"{times} bursts of fatal XIDs in {rule.window_s / 3600:g} h: hold the board"
    return (seen.found(FATAL, Severity.CONDEMNING, words, key=HOLD),)


def _is_fatal(evidence: Evidence) -> bool:
    return evidence.severity is Severity.CONDEMNING and code_of(evidence) is not None


def sm_exceptions(seen: Seen) -> Findings:
    """Return that XID 13 recurs in one TPC."""
    rule, place = seen.policy.detectors.sm_exception_repeats, place_in_gpu(seen.newest)
    gpc, tpc, _ = place
    if gpc is None or tpc is None or code_of(seen.newest) != SM_EXCEPTION:
        return NO_FINDINGS
    times = num_bursts(seen.alike(rule.window_s, of_code_at(SM_EXCEPTION, place)), seen.policy)
    if times < rule.times:
        return NO_FINDINGS
    words = f"XID 13 {times} times in GPC {gpc:.0f}, TPC {tpc:.0f}: to be diagnosed"
    return (seen.found(SM_EXCEPTIONS, Severity.INFO, words, values={TIMES: float(times)}),)


def double_bit_pages(seen: Seen) -> Findings:
    """Return that more than one of the pages that ``retired_pages`` counted is of this week."""
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


def remapped_rows(seen: Seen) -> Findings:
    """Return that too many rows are of this week among the rises that ``corrected_remaps`` counted."""
    rule = seen.policy.detectors.corrected_remaps
    if seen.newest.detector != corrected_remaps.NAME or corrected_remaps.ROWS not in seen.newest.values:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, of_detector(corrected_remaps.NAME))
    rows = sum(each.values.get(corrected_remaps.ROWS, 0.0) for each in alike)
    if rows <= rule.rows_max:
        return NO_FINDINGS
    words = f"{rows:.0f} rows remapped after correctable errors within {rule.window_s / 86_400:g} days"
    return (seen.found(corrected_remaps.NAME, Severity.DEGRADED, words, key=corrected_remaps.RATE),)


def nic_driver_faults(seen: Seen) -> Findings:
    """Return that a node's network cards had faults again, by their driver.

    All cards of the node count together: one fault each on three cards is a fault of a part that they share.
    """
    rule = seen.policy.detectors.nic_driver_repeats
    if seen.newest.detector != nic_driver.NAME:
        return NO_FINDINGS
    alike = seen.alike(rule.window_s, of_detector(nic_driver.NAME))
    times = len(alike)
    if times < rule.times:
        return NO_FINDINGS
    cards = ", ".join(sorted({nic_driver.card_of(each.fault_key) for each in alike}))
    words = f"the driver of this node's network cards reported {times} faults in {rule.window_s / 3600:g} h: {cards}"
    return (seen.found(NIC_DRIVER, Severity.DEGRADED, words, values={TIMES: float(times)}),)
