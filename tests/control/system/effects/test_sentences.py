"""Sentences of changes: each kind of event that a person's change may leave has one, and none names the event."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from control.system.effects.changes import SENTENCES, Named, sentences_of
from muster.domain.ids import JobId
from muster.domain.states import Standing

ROOT = Path(__file__).resolve().parents[4]
BY_PERSONS = (
    "attempts/suspects",
    "content/bundles",
    "fleet/cordons",
    "fleet/inventory",
    "fleet/overrides",
    "health/breakers",
    "health/burn_ins/orders",
    "health/interventions",
    "hosts/drains",
    "hosts/join_tokens",
    "hosts/node_labels",
    "incidents/incidents",
    "jobs/jobs",
    "policy/policies",
    "policy/spent_budgets",
    "secrets/rewrapping",
    "secrets/tenant_secrets",
    "tenants/keys",
    "tenants/login_keys",
    "tenants/persons",
    "tenants/quotas",
    "tenants/tenants",
)
"""The modules whose units persons begin."""
KIND_AT = {"emit": 0, "_leave_traces": 1, "_report": 3}
"""Functions that leave an event, and which of their arguments is its kind."""
ENROLMENT = {"node.enrolled"}
"""No dry run of it is offered."""
PAYLOAD = {
    "name": "n",
    "role": "operator",
    "reason": "r",
    "scope": "fleet",
    "version": 3,
    "nodes": 2,
    "num_gpus": 8,
    "host_name": "h",
    "expires_at": "2026-01-01T00:00:00Z",
    "step": 7,
    "amount": "25000.00",
    "currency": "EUR",
    "spent": "12500.00",
    "share": 50,
    "action": "no_new_jobs",
    "job_id": "job_1",
    "jobs": ["job_1"],
    "tier": "reserved",
    "standing": "QUARANTINED",
    "from": {"guaranteed_gpus": 1, "borrowable_gpus": None, "ceiling_gpus": 4},
    "to": {"guaranteed_gpus": 2, "borrowable_gpus": 1, "ceiling_gpus": None, "parent_id": None, "weight": 2.0},
}


def _kinds() -> Iterator[str]:
    for name in BY_PERSONS:
        for node in ast.walk(ast.parse((ROOT / "control" / f"{name}.py").read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in KIND_AT:
                kind = node.args[KIND_AT[called]]
                if isinstance(kind, ast.Constant) and "." in str(kind.value):
                    yield str(kind.value)


def test_each_kind_of_event_of_a_change_by_a_person_has_a_sentence() -> None:
    found = set(_kinds())
    assert len(found) > 20, "the kinds were found"
    assert found - ENROLMENT - SENTENCES.keys() == set()
    assert {f"gpu.{standing.lower()}" for standing in Standing} <= SENTENCES.keys()


@pytest.mark.parametrize("kind", sorted(SENTENCES))
def test_a_sentence_is_words_without_the_name_of_the_event(kind: str) -> None:
    event = {"type": "event", "kind": kind, "subject_type": kind.split(".", maxsplit=1)[0], "subject_id": "id_1"}
    moves = {"from": "SUSPECT", "to": "QUARANTINED"} if kind.startswith("gpu.") else {}
    labels = {"from": {}, "to": {"rack": "a"}} if kind == "node.labelled" else {}
    payload = {**PAYLOAD, **moves, **labels}
    (sentence,) = sentences_of(Named([{**event, "payload": payload}], {"id_1": "alpha", "job_1": "bert"}), set())
    assert kind not in sentence
    assert not re.search(r"[{}]|None\b", sentence), sentence


def test_a_kind_without_a_sentence_is_named_by_its_subject_and_a_reported_job_not_at_all() -> None:
    def event(kind: str, subject: str) -> dict[str, object]:
        subject_type = kind.split(".", maxsplit=1)[0]
        return {"type": "event", "kind": kind, "subject_type": subject_type, "subject_id": subject, "payload": {}}

    events = [event("join_token.aged", "jt1"), event("job.queued", "job_1"), event("attempt.stopping", "att_1")]
    assert sentences_of(Named(events, {}), {JobId("job_1")}) == ("join token jt1 changes",)
