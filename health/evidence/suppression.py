"""Suppression: evidence that is kept and shown and weighs nothing. Its ``values`` state why, and until when.

Two kinds. Set aside permanently: found by a rule in shadow, while links trained after a boot or during maintenance of
the node; replaced by the kernel log's own text; or milder by the driver's decision
(``health.remedy.fault_precedence``). Pending: it weighs once it has outlasted its time, and never if it ends before
(``outlasted``).
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from muster.domain.evidence.findings import Evidence, Finding, GpuSignal

SHADOW: Final = "shadow"
WARM_UP: Final = "warm_up"
MAINTENANCE: Final = "maintenance"
SUPERSEDED: Final = "superseded"
FOLLOWS: Final = "follows"
OVERRULED_BY_NVML: Final = "overruled_by_nvml"
OVERRULED_BY_154: Final = "overruled_by_xid_154"
OVERRULED: Final = frozenset({OVERRULED_BY_NVML, OVERRULED_BY_154})
WORDS: Final[Mapping[str, str]] = {
    SHADOW: "its rule is in shadow mode",
    WARM_UP: "its links were training after a boot",
    MAINTENANCE: "its node was in maintenance",
    SUPERSEDED: "the kernel log told it in its own words",
    FOLLOWS: "another XID came within seconds, and it is the clean-up after that one",
    OVERRULED_BY_NVML: "the driver's own word decides, not the catalogue's: NVML asks for a drain",
    OVERRULED_BY_154: "the driver's own word decides, not the catalogue's: XID 154 asks for a drain",
}
"""Key in ``values`` → why it weighs nothing."""
WEIGHS_FROM: Final = "weighs_from_ms"
"""Key in ``values`` of evidence that is pending: the time from which on it weighs if it still stands."""
BOOT: Final = "told_in_boot"
"""Key in ``values`` of a state that is pending: a mark of the boot in which it was reported, 0 where that is unknown.
"""
OUTLASTED: Final = "outlasted_at_ms"
CLOSED_AT: Final = "closed_at_ms"
"""Key in ``values`` of evidence whose fault was seen to be over."""
BACK_AT: Final = "back_at_ms"
"""Key in ``values`` of evidence whose fault recurred after its end or in another boot: the time of the recurrence."""
WEIGHTLESS: Final = frozenset({*WORDS, WEIGHS_FROM})
"""Keys in ``values``, any of which shows that it weighs nothing now."""
_KEYS: Final = frozenset(WORDS)


def is_weightless(values: Mapping[str, float]) -> bool:
    return not WEIGHTLESS.isdisjoint(values)


def set_aside_by(values: Mapping[str, float]) -> frozenset[str]:
    """Return why it is set aside permanently; empty where it is not."""
    return _KEYS.intersection(values)


def why_weightless(values: Mapping[str, float]) -> str | None:
    """Return as text why it weighs nothing; None where it weighs."""
    for key in WORDS:
        if key in values:
            return WORDS[key]
    return "it weighs only if it lasts" if WEIGHS_FROM in values else None


def pending_until(at_ms: int, outlast_s: float) -> dict[str, float]:
    """Return the entry of ``values`` for a finding that weighs only once it has stood for so long."""
    return {WEIGHS_FROM: float(at_ms + int(outlast_s * 1000))}


def outlasting(signal: GpuSignal, outlast_s: float) -> dict[str, float]:
    """Return the same entry for a state, with the boot in which it was reported.

    The state stands as long as its host is in contact in that boot (``Heard``).
    """
    boot_id, _, origin = signal.signal_id.partition(":")
    return {**pending_until(signal.at_ms, outlast_s), BOOT: _mark_of(boot_id) if origin else 0.0}


def aside(finding: Finding, why: str) -> Finding:
    return replace(finding, values={**finding.values, why: 1.0})


def weighs_from_ms(evidence: Evidence) -> int | None:
    """Return when pending evidence will weigh if it still stands then; None where it never will, or does already."""
    values = evidence.values
    if WEIGHS_FROM not in values or CLOSED_AT in values or set_aside_by(values):
        return None
    return int(values[WEIGHS_FROM])


def again(values: Mapping[str, float], told: Mapping[str, float], at_ms: int) -> dict[str, float]:
    """Return the values of evidence whose fault recurs after its end or after a boot.

    The fault has to outlast its time again.
    """
    waits = {name: told[name] for name in (WEIGHS_FROM, BOOT) if name in told} if WEIGHS_FROM in values else {}
    kept = {name: value for name, value in values.items() if name != CLOSED_AT}
    return {**kept, **waits, BACK_AT: float(at_ms)}


def is_of_another_boot(values: Mapping[str, float], told: Mapping[str, float]) -> bool:
    """Return whether pending evidence is stated again in another boot."""
    return WEIGHS_FROM in values and 0 < values.get(BOOT, 0) != told.get(BOOT, 0) > 0


@dataclass(frozen=True, slots=True)
class Heard:
    """The last contact of a host, None where there was none, and its boot."""

    at_ms: int | None
    boot_id: str | None

    def vouches(self, values: Mapping[str, float], from_ms: int) -> bool:
        """Return whether a pending state still stood at ``from_ms``: a silent host reports no end."""
        mark = values[BOOT]
        is_same_boot = not mark or (self.boot_id is not None and mark == _mark_of(self.boot_id))
        return is_same_boot and self.at_ms is not None and self.at_ms >= from_ms


def waits_to_be_heard(evidence: Evidence, now_ms: int) -> bool:
    """Return whether its time has come, and only a report of its host is missing."""
    from_ms = weighs_from_ms(evidence)
    return from_ms is not None and from_ms <= now_ms


def outlasted(evidence: Evidence, now_ms: int, heard: Heard | None = None) -> Evidence:
    """Return the evidence, no longer pending where its time has come and it still stands.

    ``heard``: None means that its host is in contact now.
    """
    from_ms = weighs_from_ms(evidence)
    if from_ms is None or from_ms > now_ms:
        return evidence
    if heard is not None and BOOT in evidence.values and not heard.vouches(evidence.values, from_ms):
        return evidence
    values = {name: value for name, value in evidence.values.items() if name not in {WEIGHS_FROM, BOOT}}
    return replace(evidence, values={**values, OUTLASTED: float(from_ms)})


def _mark_of(boot_id: str) -> float:
    return float(zlib.crc32(boot_id.encode()))
