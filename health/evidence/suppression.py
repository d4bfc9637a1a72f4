"""Evidence that is kept and shown and weighs nothing: why, and until when. It stands in the evidence's ``values``.

Two kinds. Set aside for good: told by a rule in shadow, while links trained after a boot, while somebody worked on the
node, replaced by what the kernel log said in its own words, or milder by the driver's own word
(``health.remedy.fault_precedence``). Pending: it weighs once it has outlasted its time, and
never if it is over before (``outlasted``).
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
"""Key in ``values`` of a state that is pending: a mark of the boot in which it was told, 0 where nobody knows."""
OUTLASTED: Final = "outlasted_at_ms"
CLOSED_AT: Final = "closed_at_ms"
"""Key in ``values`` of evidence whose fault was seen to be over."""
BACK_AT: Final = "back_at_ms"
"""Key in ``values`` of evidence whose fault was told again after it was over or in another boot: when."""
WEIGHTLESS: Final = frozenset({*WORDS, WEIGHS_FROM})
"""Keys in ``values``, any of which says that it weighs nothing now."""
_KEYS: Final = frozenset(WORDS)


def is_weightless(values: Mapping[str, float]) -> bool:
    return not WEIGHTLESS.isdisjoint(values)


def set_aside_by(values: Mapping[str, float]) -> frozenset[str]:
    """Why it is set aside for good; empty where it is not."""
    return _KEYS.intersection(values)


def why_weightless(values: Mapping[str, float]) -> str | None:
    """In words; None where it weighs."""
    for key in WORDS:
        if key in values:
            return WORDS[key]
    return "it weighs only if it lasts" if WEIGHS_FROM in values else None


def pending_until(at_ms: int, outlast_s: float) -> dict[str, float]:
    """For a finding's ``values``: it weighs only once it has stood for so long."""
    return {WEIGHS_FROM: float(at_ms + int(outlast_s * 1000))}


def outlasting(signal: GpuSignal, outlast_s: float) -> dict[str, float]:
    """The same for a state: it stands as long as its host is heard in the boot in which it was told (``Heard``)."""
    boot_id, _, origin = signal.signal_id.partition(":")
    return {**pending_until(signal.at_ms, outlast_s), BOOT: _mark_of(boot_id) if origin else 0.0}


def aside(finding: Finding, why: str) -> Finding:
    return replace(finding, values={**finding.values, why: 1.0})


def weighs_from_ms(evidence: Evidence) -> int | None:
    """When pending evidence will weigh if it still stands then; None where it never will, or does already."""
    values = evidence.values
    if WEIGHS_FROM not in values or CLOSED_AT in values or set_aside_by(values):
        return None
    return int(values[WEIGHS_FROM])


def again(values: Mapping[str, float], told: Mapping[str, float], at_ms: int) -> dict[str, float]:
    """Of evidence whose fault is ``told`` again after it was over or the host booted: what had to last begins anew."""
    waits = {name: told[name] for name in (WEIGHS_FROM, BOOT) if name in told} if WEIGHS_FROM in values else {}
    kept = {name: value for name, value in values.items() if name != CLOSED_AT}
    return {**kept, **waits, BACK_AT: float(at_ms)}


def is_of_another_boot(values: Mapping[str, float], told: Mapping[str, float]) -> bool:
    """Whether what is pending is ``told`` again in another boot."""
    return WEIGHS_FROM in values and 0 < values.get(BOOT, 0) != told.get(BOOT, 0) > 0


@dataclass(frozen=True, slots=True)
class Heard:
    """When a host was last heard, None where it never was, and in which boot."""

    at_ms: int | None
    boot_id: str | None

    def vouches(self, values: Mapping[str, float], from_ms: int) -> bool:
        """Whether a state that is pending still stood at ``from_ms``: a silent host tells of no end."""
        mark = values[BOOT]
        is_same_boot = not mark or (self.boot_id is not None and mark == _mark_of(self.boot_id))
        return is_same_boot and self.at_ms is not None and self.at_ms >= from_ms


def waits_to_be_heard(evidence: Evidence, now_ms: int) -> bool:
    """Whether its time has come, and only its host's word is wanting."""
    from_ms = weighs_from_ms(evidence)
    return from_ms is not None and from_ms <= now_ms


def outlasted(evidence: Evidence, now_ms: int, heard: Heard | None = None) -> Evidence:
    """The evidence, no more pending where its time has come and it still stands. ``heard``: None for just now."""
    from_ms = weighs_from_ms(evidence)
    if from_ms is None or from_ms > now_ms:
        return evidence
    if heard is not None and BOOT in evidence.values and not heard.vouches(evidence.values, from_ms):
        return evidence
    values = {name: value for name, value in evidence.values.items() if name not in {WEIGHS_FROM, BOOT}}
    return replace(evidence, values={**values, OUTLASTED: float(from_ms)})


def _mark_of(boot_id: str) -> float:
    return float(zlib.crc32(boot_id.encode()))
