"""Suppression: evidence that is kept and shown and weighs nothing, with the reason and the time until it does.

Two kinds. Suppressed: found by a rule in shadow, while links trained after a boot or during maintenance of the node;
replaced by the kernel log's own text; or milder by the driver's decision (``health.remedy.fault_precedence``).
Pending: it weighs once it has outlasted its time, and never if it ends before (``outlasted``).
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from muster.domain.evidence.findings import Evidence, Finding, GpuSignal, Pending, Suppression

OVERRULED: Final = frozenset({Suppression.OVERRULED_BY_NVML, Suppression.OVERRULED_BY_154})
SUPPRESSION_TEXTS: Final[Mapping[Suppression, str]] = {
    Suppression.SHADOW: "its rule is in shadow mode",
    Suppression.WARM_UP: "its links were training after a boot",
    Suppression.MAINTENANCE: "its node was in maintenance",
    Suppression.SUPERSEDED: "the kernel log reported it with more detail",
    Suppression.FOLLOWS: "it is the clean-up after another XID of the same seconds",
    Suppression.OVERRULED_BY_NVML: "the driver's request has precedence over the catalogue: NVML asks for a drain",
    Suppression.OVERRULED_BY_154: "the driver's request has precedence over the catalogue: XID 154 asks for a drain",
}
"""Reason → why it weighs nothing. The first that applies is shown."""


def is_weightless(found: Finding | Evidence) -> bool:
    """Return whether it is suppressed or pending."""
    return bool(found.suppressed_by) or found.pending is not None


def why_weightless(found: Finding | Evidence) -> str | None:
    """Return as text why it weighs nothing; None where it weighs."""
    for reason, words in SUPPRESSION_TEXTS.items():
        if reason in found.suppressed_by:
            return words
    return "it weighs only if it lasts" if found.pending is not None else None


def pending_until(at_ms: int, outlast_s: float) -> Pending:
    """Return the condition of a finding that weighs only once it has stood for so long."""
    return Pending(at_ms + int(outlast_s * 1000))


def outlasting(signal: GpuSignal, outlast_s: float) -> Pending:
    """Return the same condition for a state, with the boot in which it was reported.

    The state stands as long as its host is in contact in that boot (``LastContact``).
    """
    boot_id, _, origin = signal.signal_id.partition(":")
    return Pending(signal.at_ms + int(outlast_s * 1000), _mark_of(boot_id) if origin else 0)


def aside(finding: Finding, why: Suppression) -> Finding:
    """Return the finding, suppressed for one more reason."""
    return replace(finding, suppressed_by=finding.suppressed_by | {why})


def suppressed(evidence: Evidence, why: Suppression) -> Evidence:
    """Return the evidence, suppressed for one more reason."""
    return evidence.changed_to(replace(evidence, suppressed_by=evidence.suppressed_by | {why}))


def weighs_from_ms(evidence: Evidence) -> int | None:
    """Return when pending evidence will weigh if it still stands then; None where it never will, or does already."""
    if evidence.pending is None or evidence.closed_at_ms is not None or evidence.suppressed_by:
        return None
    return evidence.pending.weighs_from_ms


def again(evidence: Evidence, reported: Finding, at_ms: int) -> Evidence:
    """Return evidence whose fault recurs after its end or after a boot: the fault has to outlast its time again."""
    waits = evidence.pending
    if waits is not None and reported.pending is not None:
        mark = waits.boot_mark if reported.pending.boot_mark is None else reported.pending.boot_mark
        waits = replace(reported.pending, boot_mark=mark)
    return replace(evidence, pending=waits, closed_at_ms=None, reopened_at_ms=at_ms)


def is_of_another_boot(pending: Pending | None, reported: Pending | None) -> bool:
    """Return whether a pending fault is stated again in another boot."""
    if pending is None or reported is None:
        return False
    return 0 < (pending.boot_mark or 0) != (reported.boot_mark or 0) > 0


@dataclass(frozen=True, slots=True)
class LastContact:
    """The last contact of a host, None where there was none, and its boot."""

    at_ms: int | None
    boot_id: str | None

    def vouches(self, pending: Pending) -> bool:
        """Return whether a pending state still stood when it was to weigh: a silent host reports no end."""
        mark = pending.boot_mark
        is_same_boot = not mark or (self.boot_id is not None and mark == _mark_of(self.boot_id))
        return is_same_boot and self.at_ms is not None and self.at_ms >= pending.weighs_from_ms


def awaits_contact(evidence: Evidence, now_ms: int) -> bool:
    """Return whether its time has come, and only a report of its host is missing."""
    from_ms = weighs_from_ms(evidence)
    return from_ms is not None and from_ms <= now_ms


def outlasted(evidence: Evidence, now_ms: int, contact: LastContact | None = None) -> Evidence:
    """Return the evidence, no longer pending where its time has come and it still stands.

    ``contact``: None means that its host is in contact now.
    """
    from_ms = weighs_from_ms(evidence)
    if from_ms is None or evidence.pending is None or from_ms > now_ms:
        return evidence
    if contact is not None and evidence.pending.boot_mark is not None and not contact.vouches(evidence.pending):
        return evidence
    return evidence.changed_to(replace(evidence, pending=None, outlasted_at_ms=from_ms))


def _mark_of(boot_id: str) -> int:
    return zlib.crc32(boot_id.encode())
