"""The keys in ``values`` by which the release before states the life of a finding or an evidence.

They are read wherever something of that release may arrive: stored rows and signals, exports. Stored rows and signals
also carry them for one release more, since processes of that release read them meanwhile (decision 45).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from muster.domain.evidence.findings import Evidence, Finding, Pending, Suppression

WEIGHS_FROM: Final = "weighs_from_ms"
BOOT: Final = "told_in_boot"
OUTLASTED: Final = "outlasted_at_ms"
CLOSED_AT: Final = "closed_at_ms"
BACK_AT: Final = "back_at_ms"
OF_SUPPRESSIONS: Final = tuple(Suppression)
"""Their values are these keys."""
KEYS: Final = frozenset({WEIGHS_FROM, BOOT, OUTLASTED, CLOSED_AT, BACK_AT, *OF_SUPPRESSIONS})


def readings_in(values: Mapping[str, float]) -> dict[str, float]:
    """Return the values without these keys."""
    return {name: value for name, value in values.items() if name not in KEYS}


def typed_finding(finding: Finding) -> Finding:
    """Return the finding with the life that its values state in typed fields."""
    if KEYS.isdisjoint(finding.values):
        return finding
    return replace(
        finding,
        values=readings_in(finding.values),
        suppressed_by=_suppressions_in(finding.values),
        pending=_pending_in(finding.values),
    )


def typed_evidence(evidence: Evidence) -> Evidence:
    """Return the evidence with the life that its values state in typed fields."""
    values = evidence.values
    if KEYS.isdisjoint(values):
        return evidence
    return replace(
        evidence,
        values=readings_in(values),
        suppressed_by=_suppressions_in(values),
        pending=_pending_in(values),
        outlasted_at_ms=_whole(values.get(OUTLASTED)),
        closed_at_ms=_whole(values.get(CLOSED_AT)),
        reopened_at_ms=_whole(values.get(BACK_AT)),
    )


def with_old_keys(found: Finding | Evidence) -> dict[str, float]:
    """Return the values as the release before reads them: the life among the readings."""
    told = {**found.values, **{str(each): 1.0 for each in Suppression if each in found.suppressed_by}}
    if found.pending is not None:
        told[WEIGHS_FROM] = float(found.pending.weighs_from_ms)
        if found.pending.boot_mark is not None:
            told[BOOT] = float(found.pending.boot_mark)
    if isinstance(found, Evidence):
        times = (OUTLASTED, found.outlasted_at_ms), (CLOSED_AT, found.closed_at_ms), (BACK_AT, found.reopened_at_ms)
        told |= {name: float(at_ms) for name, at_ms in times if at_ms is not None}
    return told


def _suppressions_in(values: Mapping[str, float]) -> frozenset[Suppression]:
    return frozenset(each for each in OF_SUPPRESSIONS if each in values)


def _pending_in(values: Mapping[str, float]) -> Pending | None:
    from_ms = _whole(values.get(WEIGHS_FROM))
    return None if from_ms is None else Pending(from_ms, _whole(values.get(BOOT)))


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
