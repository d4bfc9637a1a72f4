"""Stored evidence gets state and typed times from the keys of the release before, whichever release writes the row."""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from control.evidence.rows import change_evidence, evidence_of
from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import EvidenceRow
from muster.domain.evidence.findings import Evidence, Pending, Suppression
from muster.domain.states import EvidenceState

BEFORE = "20261125_0317"
MS = 1_790_000_000_123
READINGS = {"code": 74.0, "link": 3.0}
CASES: dict[str, tuple[dict[str, float], dict[str, Any], EvidenceState]] = {
    "ev_active": ({}, {}, EvidenceState.ACTIVE),
    "ev_closed": ({"closed_at_ms": MS}, {"closed_at_ms": MS}, EvidenceState.CLOSED),
    "ev_moment": ({"weighs_from_ms": MS}, {"pending": Pending(MS)}, EvidenceState.PENDING),
    "ev_state": (
        {"weighs_from_ms": MS, "told_in_boot": 4_294_967_295.0},
        {"pending": Pending(MS, 4_294_967_295)},
        EvidenceState.PENDING,
    ),
    "ev_boot_unknown": (
        {"weighs_from_ms": MS, "told_in_boot": 0.0},
        {"pending": Pending(MS, 0)},
        EvidenceState.PENDING,
    ),
    "ev_lapsed": (
        {"weighs_from_ms": MS, "closed_at_ms": MS - 1},
        {"pending": Pending(MS), "closed_at_ms": MS - 1},
        EvidenceState.LAPSED,
    ),
    "ev_reopened": (
        {"outlasted_at_ms": MS, "back_at_ms": MS + 5},
        {"outlasted_at_ms": MS, "reopened_at_ms": MS + 5},
        EvidenceState.ACTIVE,
    ),
    "ev_two_reasons": (
        {"maintenance": 1.0, "shadow": 1.0, "closed_at_ms": MS},
        {"suppressed_by": frozenset({Suppression.SHADOW, Suppression.MAINTENANCE}), "closed_at_ms": MS},
        EvidenceState.SUPPRESSED,
    ),
    **{
        f"ev_{why}": ({str(why): 1.0}, {"suppressed_by": frozenset({why})}, EvidenceState.SUPPRESSED)
        for why in Suppression
    },
    "ev_suspended": ({"shadow": 1.0}, {"suppressed_by": {Suppression.SHADOW}}, EvidenceState.SUSPENDED),
    "ev_dismissed": ({"closed_at_ms": MS}, {"closed_at_ms": MS}, EvidenceState.DISMISSED),
}
"""Evidence of each kind of key: the keys, the fields that they become, and the state."""
INSERT = """
INSERT INTO evidence (
    id, node_id, detector, detector_version, fault_key, severity, trust, sources, onset_at, last_seen_at,
    counts_for_ms, summary, threatens_correctness, is_suspended, "values", created_at,
    dismissed_at, dismissed_by, dismiss_reason
) VALUES (
    %(id)s, 'node_a', 'xid', 1, 'xid:74', 2, 'measured', '["nvml"]', now(), now(), 1000, 'XID 74', false,
    %(is_suspended)s, %(values)s, now(),
    CASE WHEN %(is_dismissed)s THEN now() END, CASE WHEN %(is_dismissed)s THEN 'a person' END,
    CASE WHEN %(is_dismissed)s THEN 'a test' END
)
"""
ALONE = "SET LOCAL session_replication_role = replica"
"""The evidence alone, without node and GPU."""
STORED = 'SELECT id, "values" FROM evidence ORDER BY id'


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[Engine]:
    name = f"evidence_{uuid.uuid4().hex}"
    postgres_server.create_database(name)
    engine = make_engine(postgres_server.url(name))
    yield engine
    engine.dispose()
    postgres_server.drop_database(name)


@pytest.fixture
def filled(empty: Engine) -> Engine:
    """Return a database of the release before, with evidence of each kind."""
    migrate.upgrade(empty.url, BEFORE)
    with empty.begin() as connection:
        connection.exec_driver_sql(ALONE)
        for name, (keys, _, state) in CASES.items():
            columns = {
                "id": name,
                "values": json.dumps({**READINGS, **keys}),
                "is_suspended": state is EvidenceState.SUSPENDED,
                "is_dismissed": state is EvidenceState.DISMISSED,
            }
            connection.exec_driver_sql(INSERT, columns)
    return empty


def values_in(engine: Engine) -> list[tuple[Any, ...]]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(STORED)]


def read(engine: Engine) -> Mapping[str, tuple[EvidenceRow, Evidence]]:
    """Return the stored evidence as this release reads it."""
    with Session(engine, expire_on_commit=False) as session:
        return {row.id: (row, evidence_of(row)) for row in session.scalars(select(EvidenceRow))}


def test_each_kind_of_key_becomes_typed_fields_and_a_state(filled: Engine) -> None:
    migrate.upgrade(filled.url)
    found = read(filled)
    assert found.keys() == CASES.keys()
    for name, (_, fields, state) in CASES.items():
        row, evidence = found[name]
        assert (name, row.state, evidence.state) == (name, state, state)
        bare = replace(
            evidence,
            suppressed_by=frozenset(),
            pending=None,
            outlasted_at_ms=None,
            closed_at_ms=None,
            reopened_at_ms=None,
        )
        assert evidence == replace(bare, values=READINGS, **fields), name


def test_the_way_down_loses_nothing_and_the_way_up_again_gives_the_same(filled: Engine) -> None:
    before = values_in(filled)
    migrate.upgrade(filled.url)
    first = {name: evidence for name, (_, evidence) in read(filled).items()}
    migrate.downgrade(filled.url, BEFORE)
    assert values_in(filled) == before
    migrate.upgrade(filled.url)
    assert {name: evidence for name, (_, evidence) in read(filled).items()} == first


def test_a_row_that_the_release_before_changes_meanwhile_is_read_right(filled: Engine) -> None:
    migrate.upgrade(filled.url)
    with filled.begin() as connection:
        for name, key in (("ev_active", "closed_at_ms"), ("ev_state", "superseded")):
            added = json.dumps({key: float(MS)})
            change = 'UPDATE evidence SET "values" = "values" || %(added)s::jsonb WHERE id = %(id)s'
            connection.exec_driver_sql(change, {"added": added, "id": name})
        connection.exec_driver_sql("UPDATE evidence SET is_suspended = false WHERE id = 'ev_suspended'")
    found = {name: evidence for name, (_, evidence) in read(filled).items()}
    assert (found["ev_active"].state, found["ev_active"].closed_at_ms) == (EvidenceState.CLOSED, MS)
    assert found["ev_state"].suppressed_by == {Suppression.SUPERSEDED}
    assert found["ev_suspended"].state is EvidenceState.SUPPRESSED


def test_what_this_release_writes_the_release_before_reads(filled: Engine) -> None:
    migrate.upgrade(filled.url)
    with Session(filled) as session:
        row = session.get_one(EvidenceRow, "ev_active")
        change_evidence(row, replace(evidence_of(row), closed_at_ms=MS, outlasted_at_ms=MS - 7))
        session.flush()
        session.refresh(row)
        assert (row.state, row.values) == (
            EvidenceState.CLOSED,
            {**READINGS, "closed_at_ms": float(MS), "outlasted_at_ms": float(MS - 7)},
        )


def test_the_database_refuses_an_unlisted_edge(filled: Engine) -> None:
    migrate.upgrade(filled.url)
    revived = "UPDATE evidence SET dismissed_at = NULL, dismissed_by = NULL, dismiss_reason = NULL WHERE id = %(id)s"
    with pytest.raises(DBAPIError, match="DISMISSED -> CLOSED is not a listed edge"), filled.begin() as connection:
        connection.exec_driver_sql(revived, {"id": "ev_dismissed"})
