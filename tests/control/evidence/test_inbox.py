"""Findings of samples wait in the database; for one release either release reads the findings that the other stored."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from control.evidence.inbox import findings_of, sample_row
from muster.db.models import StoredSignal
from muster.domain.evidence.findings import Finding, Pending, Suppression
from tests.health.case_factory import NODE, NOW_MS, POLICY, finding

AT = datetime(2026, 11, 26, tzinfo=UTC)
FOUND = replace(
    finding(),
    values={"code": 63.0},
    suppressed_by=frozenset({Suppression.SHADOW}),
    pending=Pending(NOW_MS, boot_mark=7),
)
OLD_KEYS = {"code": 63.0, "shadow": 1.0, "weighs_from_ms": float(NOW_MS), "told_in_boot": 7.0}


def stored(values: dict[str, Any]) -> StoredSignal:
    return StoredSignal(
        node_id=NODE,
        signal_id="sample",
        gpu_uuid=FOUND.gpu_uuid,
        kind="finding",
        source="nvml",
        code=None,
        at=AT,
        received_at=AT,
        text="",
        values=values,
        is_open=False,
    )


def written(found: Finding) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(sample_row(found, NODE, "sample", AT)["values"])
    return values


def test_a_finding_is_read_as_it_was_stored() -> None:
    assert findings_of([stored(written(FOUND))], POLICY) == [FOUND]


def test_a_finding_of_the_release_before_is_read_with_the_life_that_its_values_state() -> None:
    old = written(replace(FOUND, values={}, suppressed_by=frozenset(), pending=None))
    del old["suppressed_by"], old["pending"]
    assert findings_of([stored({**old, "values": OLD_KEYS})], POLICY) == [FOUND]


def test_the_release_before_finds_its_keys_in_what_this_one_stores() -> None:
    assert written(FOUND)["values"] == OLD_KEYS
