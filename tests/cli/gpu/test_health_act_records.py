"""Evidence and findings in an export: the fields of this release, and the keys in ``values`` of the release before."""

from typing import Any, Final

import pytest

from muster.cli.gpu.health_act_records import evidence_input, finding_input
from muster.domain.evidence.findings import Pending, Source, Suppression
from muster.wire import health_records as wire

AT = 1_790_000_000_000
TYPED: Final[dict[str, Any]] = {"suppressed_by": (Suppression.SHADOW,), "weighs_from_ms": AT + 60, "boot_mark": 7}
OLD_KEYS = {"code": 74.0, "shadow": 1.0, "weighs_from_ms": AT + 60.0, "told_in_boot": 7.0}


def known(**fields: Any) -> wire.KnownEvidence:
    return wire.KnownEvidence(
        id="ev_1",
        at_ms=AT,
        detector="xid",
        fault="xid:74",
        severity="DEGRADED",
        summary="XID 74",
        sources=(Source.NVML,),
        onset_ms=AT,
        last_seen_ms=AT,
        **fields,
    )


def found(**fields: Any) -> wire.Finding:
    return wire.Finding(
        at_ms=AT, detector="peers", fault="peers:power_w", severity="WARNING", summary="it draws less", **fields
    )


@pytest.mark.parametrize(
    "record",
    [
        known(values={"code": 74.0}, **TYPED, outlasted_at_ms=AT + 1, closed_at_ms=AT + 2, reopened_at_ms=AT + 3),
        known(values={**OLD_KEYS, "outlasted_at_ms": AT + 1, "closed_at_ms": AT + 2, "back_at_ms": AT + 3}),
    ],
    ids=["fields", "keys of the release before"],
)
def test_evidence_keeps_its_life(record: wire.KnownEvidence) -> None:
    evidence = evidence_input(record).evidence
    assert evidence.values == {"code": 74.0}
    assert (evidence.suppressed_by, evidence.pending) == (frozenset({Suppression.SHADOW}), Pending(AT + 60, 7))
    assert (evidence.outlasted_at_ms, evidence.closed_at_ms, evidence.reopened_at_ms) == (AT + 1, AT + 2, AT + 3)


@pytest.mark.parametrize(
    "record", [found(values={"code": 74.0}, **TYPED), found(values=OLD_KEYS)], ids=["fields", "keys"]
)
def test_a_finding_keeps_its_life(record: wire.Finding) -> None:
    finding = finding_input(record).finding
    assert finding.values == {"code": 74.0}
    assert (finding.suppressed_by, finding.pending) == (frozenset({Suppression.SHADOW}), Pending(AT + 60, 7))
