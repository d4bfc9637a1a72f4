"""XIDs, by their own text and the catalogue. Source: ``health/xid/knowledge.json``.

NVML and DCGM report an error without its text, the kernel log with it. The text may make an NVLink error (74, 144 to
150) and a contained memory error (94) milder than the catalogue's row. So a report of NVML or DCGM alone weighs only
after ``health.warm_up.log_wait_s``, and never if the text arrives before (``health.evidence.evidence.superseded_by``).
Links train when hosts boot: their XIDs of that time are kept and weigh nothing.
"""

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from health.detectors.detector import NO_FINDINGS, About, Findings, SignalDetector, signal_finding
from health.evidence.state import CODE
from health.evidence.suppression import pending_until
from health.xid.catalogue import CATALOGUE, entry_of
from health.xid.error_text import CONTAINED
from health.xid.kernel_log import process_in
from health.xid.nvlink import NVLINK5_CODES, NVLINK_ERROR, LinkReading
from health.xid.reading import RECOVERY_ACTION_CHANGED, ErrorReading, read_xid
from health.xid.recovery import SEVERITY_OF, Action
from muster.domain.evidence.findings import NOT_SUPPRESSED, EventKind, GpuSignal, Pending, Severity, Source, Suppression
from muster.domain.evidence.state_readings import DRIVER_BRANCH, SINCE_BOOT_S
from muster.domain.policy.health import HealthPolicy

NAME: Final = "xid"
ABOUT: Final = About("an XID, with the severity in docs/reference/xid.md", "NVIDIA XID catalogue", Severity.CONDEMNING)
HAS_WORDS: Final = "has_words"
"""Key in ``values`` of an error that was reported with the text that decides about it."""
NEEDS_DIAGNOSIS: Final = "asks_diagnosis"
"""Key in ``values`` of an NVLink error whose text asks for a field diagnosis, and for nothing more."""
LINK: Final = "link"
"""Key in ``values`` of an NVLink error: the number of the GPU's link."""
FOLLOWS_ERRORS: Final = "follows_errors"
"""Key in ``values`` of an XID 45 whose text states that it is the clean-up after other errors."""
TENANT_MARK: Final = "tenant_mark"
IMAGE_MARK: Final = "image_mark"
_PROCESS_MARK: Final = "process_mark"
PROGRAM_MARKS: Final = (TENANT_MARK, IMAGE_MARK, _PROCESS_MARK)
"""Keys in ``values`` of an XID that a program may cause: a number for each tenant, image and process name."""
PROGRAM_XIDS: Final = frozenset(code for code, entry in CATALOGUE.items() if entry.action is Action.RESTART_JOB)
_BIT: Final = "bit_"
_WORDLESS: Final = frozenset({Source.NVML, Source.DCGM})
_XIDS_OF_LINKS: Final = frozenset({NVLINK_ERROR, *NVLINK5_CODES, 136})
"""NVIDIA's catalogue: a link's error, or one that did not train."""
_DECIDED_BY_TEXT: Final = frozenset({NVLINK_ERROR, *NVLINK5_CODES, CONTAINED})
"""XIDs that their text may make milder than the catalogue's row."""


def judge(signal: GpuSignal, policy: HealthPolicy) -> Findings:
    """Return one finding for an XID. For 154 the text decides: an action is a fault of its own, apart from a bare 154.

    For an NVLink error its registers or unit decide, for a memory error the resets that the driver asks for, where the
    text has them (the driver's log; NVML's event has none). The layout of an NVLink error's text depends on the
    driver's branch, where the event reports it.
    """
    if signal.code is None:
        return NO_FINDINGS
    entry = entry_of(signal.code)
    fault, severity, summary = f"xid:{entry.code}", entry.severity, f"XID {entry.code}: {entry.name}"
    branch = signal.values.get(DRIVER_BRANCH)
    read = read_xid(entry.code, signal.text, driver_branch=None if branch is None else int(branch))
    if read.link is not None:
        severity, summary = _severity_of(read.link), f"{summary}: {_words_of(read.link)}"
    elif read.requested is not None:
        asked, severity = read.requested, SEVERITY_OF[read.requested]
        is_154 = entry.code == RECOVERY_ACTION_CHANGED
        fault = f"{fault}:{asked}" if is_154 else fault
        summary = f"{summary}, to {asked}" if is_154 else f"{summary}: {read.decoded.get('unit', 'no unit')}, {asked}"
    is_warming_up = _is_warming_up(signal, entry.code, policy)
    values = {CODE: float(entry.code), **_values_of(entry.code, read), **_marks_of(entry.code, signal)}
    pending = None if is_warming_up else _pending(signal, entry.code, read, policy)
    found = signal_finding(NAME, signal, fault, severity, policy, summary, values=values, pending=pending)
    suppressed_by = frozenset({Suppression.WARM_UP}) if is_warming_up else NOT_SUPPRESSED
    return (replace(found, threatens_correctness=entry.threatens_correctness, suppressed_by=suppressed_by),)


def mark_of(name: str) -> float:
    """Return the number that stands for a tenant, an image or a process in ``values``."""
    return float(zlib.crc32(name.encode()))


def is_of_links(values: Mapping[str, float]) -> bool:
    """Return whether these are values of an XID of an NVLink: one that broke, or one that did not train."""
    return values.get("code") in _XIDS_OF_LINKS


def bit_key(register: int, bit: int) -> str:
    """Return the key in ``values`` of a bit of an XID 74 that counts by how often it recurs on one link."""
    return f"{_BIT}{register}_{bit}"


def is_bit_key(name: str) -> bool:
    return name.startswith(_BIT)


def is_of_another_link(values: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Return whether both are values of NVLink errors with text, each of another link."""
    if not (is_of_links(values) and HAS_WORDS in values and HAS_WORDS in others):
        return False
    return LINK in values and LINK in others and values[LINK] != others[LINK]


def _values_of(code: int, read: ErrorReading) -> dict[str, float]:
    """Return the place in the GPU, which rules about repetitions compare, and what else rules ask of the text."""
    found = {name: float(value) for name in ("gpc", "tpc", "link") if isinstance(value := read.decoded.get(name), int)}
    if read.decoded.get(FOLLOWS_ERRORS) is True:
        found[FOLLOWS_ERRORS] = 1.0
    if read.link is None:
        return {**found, HAS_WORDS: 1.0} if code in _DECIDED_BY_TEXT and read.requested is not None else found
    bits = {bit_key(each.register, each.bit): 1.0 for each in read.link.bits if each.repeated is not None}
    asks = {NEEDS_DIAGNOSIS: 1.0} if read.link.action is Action.FIELD_DIAGNOSIS else {}
    return {**found, **bits, **asks, HAS_WORDS: 1.0}


def _marks_of(code: int, signal: GpuSignal) -> dict[str, float]:
    """Return which program had the GPU, as the event is marked, or as a text of another system names it."""
    if code not in PROGRAM_XIDS:
        return {}
    found = {mark: signal.values[mark] for mark in PROGRAM_MARKS if mark in signal.values}
    process = process_in(signal.text)
    return found if process is None else {**found, _PROCESS_MARK: mark_of(process)}


def _is_warming_up(signal: GpuSignal, code: int, policy: HealthPolicy) -> bool:
    """Return whether it is an NVLink error of the time in which links train."""
    since_boot_s = signal.values.get(SINCE_BOOT_S)
    return code in _XIDS_OF_LINKS and since_boot_s is not None and since_boot_s < policy.warm_up.after_boot_s


def _pending(signal: GpuSignal, code: int, read: ErrorReading, policy: HealthPolicy) -> Pending | None:
    """Return what keeps an error without the log's text from weighing at once; None: nothing does."""
    if code in _DECIDED_BY_TEXT and read.requested is None and signal.source in _WORDLESS:
        return pending_until(signal.at_ms, policy.warm_up.log_wait_s)
    return None


def _severity_of(link: LinkReading) -> Severity:
    """Return the severity of the link's action, and a warning where there is none but a follow-up by a person."""
    if link.action is Action.NONE and link.follow_up:
        return Severity.WARNING
    return SEVERITY_OF[link.action]


def _words_of(link: LinkReading) -> str:
    if link.bits:
        return "; ".join(dict.fromkeys(bit.meaning for bit in link.bits))
    return f"{link.unit}, {link.action}" + (f" ({link.follow_up})" if link.follow_up else "")


DETECTOR: Final = SignalDetector(NAME, 1, judge, (EventKind.XID,), ABOUT)
