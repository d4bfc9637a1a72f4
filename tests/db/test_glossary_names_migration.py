"""Stored events get the names of the glossary; stored policies stay, and are read under present names."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.domain.policy.document import Policy
from muster.domain.policy.former_keys import FORMER
from muster.domain.strict import STORED

BEFORE, AFTER = "20261126_1340", "20261126_1455"
FORMER_POLICY: dict[str, Any] = {
    "dispatch": {"ring_again_s": 11.0, "look_from_nodes": 2, "look_within_s": 12.0, "dataset_look_s": 13.0},
    "training": {"hold_s": 700.0},
    "queue": {"passed_work_bound_s": 14.0},
    "health": {
        "node_hold": {"rate_holds_s": 15.0, "moment_holds_s": 16.0, "state_holds_s": 7200.0},
        "detectors": {"gpu_count": {"holds_node_from": 3}},
        "warm_up": {"words_wait_s": 17.0},
        "burn_in": {"asked_by": ["ecc_history"], "asks_per_s": 18.0},
    },
}
KINDS = {
    "job.look_asked": "job.preflight_requested",
    "job.look_given_up": "job.preflight_abandoned",
    "job.looked_at": "job.preflight_done",
    "job.reclaim_promised": "job.reclaim_held",
    "node.clearing": "node.maintenance_evacuation",
    "gpu.repair_taken": "gpu.repair_claimed",
    "checkpoint.pin_held": "checkpoint.pin_applied",
    "job.submitted": "job.submitted",
}


@pytest.fixture
def filled(postgres_server: PostgresServer) -> Iterator[Engine]:
    name = f"names_{uuid.uuid4().hex}"
    postgres_server.create_database(name)
    engine = make_engine(postgres_server.url(name))
    migrate.upgrade(engine.url, BEFORE)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO policy_versions (document, is_active, created_at, created_by, reason) "
                "VALUES (CAST(:document AS jsonb), true, now(), 'a test', 'a test')"
            ),
            {"document": json.dumps(FORMER_POLICY)},
        )
        for kind in KINDS:
            connection.execute(
                text(
                    "INSERT INTO events (id, at, kind, subject_type, subject_id, payload) "
                    "VALUES (:kind, now(), :kind, 'job', 'job_1', '{}')"
                ),
                {"kind": kind},
            )
    yield engine
    engine.dispose()
    postgres_server.drop_database(name)


def _document(engine: Engine) -> dict[str, Any]:
    with engine.begin() as connection:
        return dict(connection.execute(text("SELECT document FROM policy_versions")).scalar_one())


def _kinds(engine: Engine) -> list[str]:
    with engine.begin() as connection:
        return sorted(connection.execute(text("SELECT kind FROM events")).scalars())


def test_events_get_the_names_and_give_them_back(filled: Engine) -> None:
    migrate.upgrade(filled.url, AFTER)
    assert _kinds(filled) == sorted(KINDS.values())
    migrate.downgrade(filled.url, BEFORE)
    assert _kinds(filled) == sorted(KINDS)


def test_a_stored_policy_stays_as_the_release_before_reads_it(filled: Engine) -> None:
    migrate.upgrade(filled.url, AFTER)
    assert _document(filled) == FORMER_POLICY


def test_the_guard_stands_again_afterwards(filled: Engine) -> None:
    migrate.upgrade(filled.url, AFTER)
    with pytest.raises(DBAPIError, match="never changes"), filled.begin() as connection:
        connection.execute(text("UPDATE events SET kind = 'job.other'"))


def test_a_document_with_former_keys_is_read_under_present_ones() -> None:
    policy = Policy.model_validate(FORMER_POLICY, strict=False, context=STORED)
    assert policy.training.fault_detection_s == 700.0
    assert policy.health.rule_cordon.model_dump() == {
        "is_on": True,
        "rate_fault_s": 15.0,
        "event_fault_s": 16.0,
        "state_fault_s": 7200.0,
    }
    written = json.dumps(policy.model_dump(mode="json")).replace('"', " ").split()
    assert not {former for _, former, _ in FORMER} & set(written)


def test_a_key_under_both_names_is_refused() -> None:
    with pytest.raises(ValueError, match="hold_s"):
        Policy.model_validate({"training": {"hold_s": 600.0, "fault_detection_s": 700.0}})
