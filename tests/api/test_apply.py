"""``muster apply`` over the real API: the differences first, then the changes through the API's own operations."""

import json
from typing import Any

from sqlalchemy import select

from muster.cli.framework.exits import Exit
from muster.db.models import AuditEntry, Cordon, Node
from tests.api.conftest import Api
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture
from tests.fleet_factory import OPERATOR

TREE = """\
kind: quota
version: 1
tenant: vision
tier: spot
guaranteed_gpus: 1
ceiling_gpus: 2
---
kind: tenant
version: 1
name: vision
under: research
weight: 2
---
kind: tenant
version: 1
name: research
"""
POLICY = "kind: policy\nversion: 1\ndocument: {contact: {heartbeat_s: 5}}\n"
WHY = ("--reason", "as the files say", "--yes")


def apply(typed: Typed, *words: str, code: int = 0, stdin: str = "", actor: str = "operator") -> str:
    answer = typed.run("apply", *words, actor=actor, code=code, stdin=stdin)
    return answer.stdout + answer.stderr


def get(api: Api, path: str) -> Any:
    answer = api.client.get(path, headers=api.headers("operator"))
    assert answer.status_code == 200, answer.text
    return answer.json()


def tenants(api: Api) -> dict[str, Any]:
    return {each["name"]: each for each in get(api, "/v1/tenants")["items"]}


def node_name(api: Api) -> str:
    with api.units.begin(OPERATOR, "node.read") as unit:
        return unit.session.scalars(select(Node.name)).one()


def test_differences_are_shown_then_made_in_order_and_then_there_are_none(typed: Typed, api: Api) -> None:
    typed.write("fleet.yaml", TREE)
    shown = apply(typed, "-f", "fleet.yaml", "--dry-run")
    assert shown == (
        "tenant research: create\n"
        "tenant vision: create\n"
        "  under: research\n"
        "  weight: 2.0\n"
        "quota vision in spot: create\n"
        "  guaranteed_gpus: 1\n"
        "  ceiling_gpus: 2\n"
        "3 to create\n"
    )
    assert typed.changes() == []
    made = apply(typed, "-f", "fleet.yaml", *WHY)
    assert made == shown + "created tenant research\ncreated tenant vision\ncreated quota vision in spot\n"
    found = tenants(api)
    assert found["vision"]["parent_id"] == found["research"]["id"]
    assert found["vision"]["weight"] == 2
    (quota,) = get(api, f"/v1/tenants/{found['vision']['id']}/quotas")["items"]
    assert (quota["guaranteed_gpus"], quota["borrowable_gpus"], quota["ceiling_gpus"]) == (1, None, 2)
    before = typed.changes()
    assert "no changes: 3 objects as the files say" in apply(typed, "-f", "fleet.yaml", *WHY)
    assert "no changes" in apply(typed, "-f", "fleet.yaml"), "without a reason too"
    assert typed.changes() == before


def test_changes_are_shown_field_by_field_and_recorded_with_their_reason(typed: Typed, api: Api) -> None:
    apply(typed, "-f", "-", *WHY, stdin=TREE)
    changed = TREE.replace("guaranteed_gpus: 1", "borrowable_gpus: 1").replace("under: research\nweight: 2\n", "")
    said = apply(typed, "-f", "-", "--reason", "a new contract", "--yes", stdin=changed)
    assert "tenant research: unchanged\n" in said
    assert "tenant vision: change\n  under: research → none\n  weight: 2.0 → 1.0\n" in said
    assert "quota vision in spot: change\n  guaranteed_gpus: 1 → 0\n  borrowable_gpus: 1\n" in said
    assert "2 to change, 1 unchanged" in said
    with api.units.begin(OPERATOR, "audit.read") as unit:
        wanted = ("tenant.place", "quota.set")
        entries = unit.session.scalars(select(AuditEntry).where(AuditEntry.action.in_(wanted))).all()
        reasons = [(entry.action, entry.reason) for entry in entries]
    expected = [(action, why) for action in wanted for why in ("as the files say", "a new contract")]
    assert sorted(reasons) == sorted(expected)


def test_a_policy_and_the_quotas_of_its_tiers_are_applied_together(typed: Typed, api: Api) -> None:
    tiers = {"reserved": {"priority": 300}, "on_demand": {"priority": 200}, "night": {"priority": 50}}
    policy = {"kind": "policy", "version": 1, "document": {"tiers": tiers}}
    quota = {"kind": "quota", "version": 1, "tenant": "other", "tier": "night", "ceiling_gpus": 1}
    typed.write("all/1-quota.json", json.dumps(quota))
    typed.write("all/2-policy.json", json.dumps(policy))
    typed.write("all/notes.txt", "no document")
    said = apply(typed, "-f", "all", *WHY)
    assert said.index("policy the active version: change\n  /tiers/night: {") < said.index(
        "quota other in night: create"
    )
    assert "night" in get(api, "/v1/policy")["document"]["tiers"]
    assert "no changes" in apply(typed, "-f", "all", *WHY)


RATES = """\
kind: rates
version: 1
document:
  currency: EUR
  cards:
  - {model: H200, tier: spot, begins_at: '2026-11-01T00:00:00Z', price_per_gpu_hour: '1.1'}
"""


def test_rate_cards_are_applied_card_by_card_and_the_past_only_where_that_is_wanted(typed: Typed, api: Api) -> None:
    typed.write("rates.yaml", RATES)
    made = apply(typed, "-f", "rates.yaml", *WHY)
    assert "rates the active version: create\n  currency: EUR\n" in made
    assert "  H200 in spot from 2026-11-01T00:00Z: 1.1\n" in made
    assert "created rates the active version" in made
    assert get(api, "/v1/rates")["reason"] == "as the files say"
    assert "no changes: 1 object" in apply(typed, "-f", "rates.yaml", *WHY)
    typed.write("rates.yaml", RATES.replace("'1.1'", "'1.2'"))
    refused = apply(typed, "-f", "rates.yaml", *WHY, code=Exit.INVALID)
    assert "bills of hours that have begun would change" in refused
    typed.write("rates.yaml", RATES.replace("'1.1'", "'1.2'") + "corrects_past: true\n")
    assert "H200 in spot from 2026-11-01T00:00Z: 1.1 → 1.2" in apply(typed, "-f", "rates.yaml", *WHY)
    assert len(get(api, "/v1/rate-versions")["items"]) == 2


def test_a_tier_and_its_prices_are_applied_together(typed: Typed, api: Api) -> None:
    tiers = {"on_demand": {"priority": 200}, "spot": {"priority": 100}, "night": {"priority": 50}}
    policy = json.dumps({"kind": "policy", "version": 1, "document": {"tiers": tiers}})
    typed.write("all.yaml", f"{RATES.replace('tier: spot', 'tier: night')}---\n{policy}\n")
    said = apply(typed, "-f", "all.yaml", *WHY)
    assert said.index("changed policy the active version") < said.index("created rates the active version")
    assert get(api, "/v1/rates")["document"]["cards"][0]["tier"] == "night"


def test_a_cordon_is_created_prolonged_and_pruned_by_its_own_kind_alone(typed: Typed, api: Api) -> None:
    node = node_name(api)
    cordon = f"kind: cordon\nversion: 1\nnode: {node}\nreason: a fan is loud\n"
    typed.write("cordon.yaml", cordon)
    assert f"created cordon on {node}: a fan is loud" in apply(typed, "-f", "cordon.yaml", *WHY)
    assert "no changes: 1 object" in apply(typed, "-f", "cordon.yaml", *WHY)
    typed.write("cordon.yaml", f"{cordon}until: 2099-01-01T00:00:00Z\n")
    refused = apply(typed, "-f", "cordon.yaml", code=Exit.INVALID)
    assert "until: is a date: write it in quotes" in refused
    typed.write("cordon.yaml", f"{cordon}until: '2099-01-01T01:00:00+01:00'\n")
    assert "until: 2099-01-01T00:00:00Z" in apply(typed, "-f", "cordon.yaml", *WHY)
    assert "no changes" in apply(typed, "-f", "cordon.yaml", *WHY)
    (standing,) = get(api, "/v1/cordons")["items"]
    assert standing["until"] == "2099-01-01T00:00:00Z"
    typed.write("cordon.yaml", f"{cordon}until: '2020-01-01T00:00:00Z'\n".replace("loud", "broken"))
    assert "no changes" in apply(typed, "-f", "cordon.yaml", *WHY), "its time is over"
    typed.write("other.yaml", "kind: tenant\nversion: 1\nname: other\n")
    assert "no changes" in apply(typed, "-f", "other.yaml", *WHY), "what no document names stays"
    pruned = apply(typed, "-f", "other.yaml", "--prune", "cordon", *WHY)
    assert "a fan is loud: release" in pruned
    assert get(api, "/v1/cordons")["items"] == []
    assert "only cordon can be pruned" in apply(typed, "-f", "other.yaml", "--prune", "tenant", *WHY, code=Exit.USAGE)


def test_one_cordon_by_two_names_of_its_place_is_a_fault(typed: Typed, api: Api) -> None:
    with api.units.begin(OPERATOR, "node.read") as unit:
        names = unit.session.execute(select(Node.id, Node.name)).one()
    text = "---\n".join(f"kind: cordon\nversion: 1\nnode: {each}\nreason: a fan is loud\n" for each in names)
    refused = " ".join(apply(typed, "-f", "-", *WHY, stdin=text, code=Exit.INVALID).split())
    assert "line 6, the whole: the cordon on" in refused
    assert "is also in stdin, line 1: keep one" in refused
    assert typed.changes() == []


def test_programs_read_the_differences_as_json(typed: Typed) -> None:
    typed.write("fleet.yaml", TREE)
    shown = json.loads(typed.run("apply", "-f", "fleet.yaml", "--dry-run", "--json", actor="operator").stdout)
    assert shown["is_applied"] is False
    assert shown["steps"][1] == {
        "kind": "tenant",
        "name": "vision",
        "action": "create",
        "differences": [
            {"field": "under", "from": None, "to": "research"},
            {"field": "weight", "from": None, "to": 2.0},
        ],
        "where": "fleet.yaml, line 8",
    }
    done = json.loads(typed.run("apply", "-f", "fleet.yaml", *WHY, "--json", actor="operator").stdout)
    assert done == {**shown, "is_applied": True}


def test_no_cordon_is_missing_while_one_is_prolonged(typed: Typed, api: Api) -> None:
    node = node_name(api)
    text = f"kind: cordon\nversion: 1\nnode: {node}\nreason: a fan is loud\nuntil: '2099-01-01T00:00:00Z'\n"
    apply(typed, "-f", "-", *WHY, stdin=text)
    apply(typed, "-f", "-", *WHY, stdin=text.replace("2099", "2098"))
    with api.units.begin(OPERATOR, "cordon.read") as unit:
        first, second = unit.session.scalars(select(Cordon).order_by(Cordon.created_at)).all()
        assert first.released_at is not None
        assert second.created_at <= first.released_at
        assert second.released_at is None


def test_what_a_run_that_broke_off_left_standing_is_released(typed: Typed, api: Api) -> None:
    node = node_name(api)
    with api.units.begin(OPERATOR, "node.read") as unit:
        node_id = unit.session.scalars(select(Node.id)).one()
    for until in (None, "2098-01-01T00:00:00Z", "2099-01-01T00:00:00Z"):
        body = {"node_id": node_id, "reason": "a fan is loud", "until": until}
        made = api.client.post("/v1/cordons", json=body, headers=api.headers("operator"))
        assert made.status_code == 201, made.text
    text = f"kind: cordon\nversion: 1\nnode: {node}\nreason: a fan is loud\nuntil: '2098-01-01T00:00:00Z'\n"
    said = apply(typed, "-f", "-", *WHY, stdin=text)
    assert "another: until 2099-01-01T00:00:00Z → released" in said
    assert "another: until it is released → released" in said
    (standing,) = get(api, "/v1/cordons")["items"]
    assert standing["until"] == "2098-01-01T00:00:00Z"
    assert "no changes" in apply(typed, "-f", "-", *WHY, stdin=text)
