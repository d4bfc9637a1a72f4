"""Rate cards by REST and by the command: set by operators, read by tenants, the past kept."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from control.ledger import rates
from muster.db.models import AuditEntry, Event, RateVersion
from tests.api.conftest import Api
from tests.api.judged_fleet import rows
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture

LATER = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) + timedelta(days=2)
BEGUN = LATER - timedelta(days=3)


def document(*prices: tuple[datetime, str], tier: str = "spot") -> dict[str, Any]:
    each = [
        {"model": "H200", "tier": tier, "begins_at": at.isoformat(), "price_per_gpu_hour": price}
        for at, price in prices
    ]
    return {"currency": "EUR", "cards": each}


def put(api: Api, wanted: Any, status: int = 201, *, actor: str = "operator", **more: Any) -> dict[str, Any]:
    body = {"document": wanted, "reason": "prices of the year", **more}
    answer = api.client.post("/v1/rates", json=body, headers=api.headers(actor))
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def get(api: Api, path: str, actor: str = "tenant_member") -> dict[str, Any]:
    answer = api.client.get(path, headers=api.headers(actor))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_without_cards_nothing_has_a_price(api: Api) -> None:
    assert (get(api, "/v1/rates")["version"], get(api, "/v1/rates")["document"]) == (None, None)


def test_operators_set_them_tenants_read_them_and_each_version_stays(api: Api) -> None:
    first = put(api, document((BEGUN, "2.75")))
    second = put(api, document((BEGUN, "2.75"), (LATER, "3")))
    assert (first["version"], second["version"]) == (1, 2)
    seen = get(api, "/v1/rates")
    assert seen["document"]["cards"][1]["price_per_gpu_hour"] == "3"
    assert (seen["created_by"], seen["reason"]) == (None, None)
    assert [each["version"] for each in get(api, "/v1/rate-versions", "auditor")["items"]] == [2, 1]
    assert len(get(api, "/v1/rate-versions/1", "auditor")["document"]["cards"]) == 1
    assert [each.subject_id for each in rows(api, Event) if each.kind == "rates.set"] == ["1", "2"]
    entries = [each for each in rows(api, AuditEntry) if each.action == rates.SET]
    assert [(each.actor, each.reason) for each in entries] == [("key:key-operator", "prices of the year")] * 2
    put(api, document(), 403, actor="tenant_admin")


def test_a_price_of_the_past_changes_only_where_that_is_wanted(api: Api) -> None:
    put(api, document((BEGUN, "2.75")))
    refused = put(api, document((BEGUN, "2")), 409)
    assert "2.75 would become 2" in refused["detail"]
    assert len(rows(api, RateVersion)) == 1
    put(api, document((BEGUN, "2")), corrects_past=True)
    assert get(api, "/v1/rates")["document"]["cards"][0]["price_per_gpu_hour"] == "2"


def test_a_tier_that_the_policy_lacks_is_refused(api: Api) -> None:
    refused = put(api, document((BEGUN, "2"), tier="gold"), 422)
    assert refused["errors"][0]["pointer"] == "/document/cards/0/tier"


def test_the_command_shows_differences_sets_and_shows(typed: Typed, api: Api) -> None:
    put(api, document((BEGUN, "2.75")))
    typed.write("rates.json", json.dumps(document((BEGUN, "2.75"), (LATER, "3.10"))))
    shown = typed.run("rates", "diff", "-f", "rates.json").stdout
    assert "1 cards differ" in shown
    assert "3.10" in shown
    tried = typed.run("rates", "set", "-f", "rates.json", "--reason", "new", "--dry-run", actor="operator").stdout
    assert "the rate cards become version 2" in tried
    typed.run("rates", "set", "-f", "rates.json", "--reason", "new", actor="operator")
    assert "price_per_gpu_hour: '3.10'" in typed.run("rates", "show").stdout
    assert "ACTIVE" in typed.run("rates", "list", actor="operator").stdout
    fewer = {**document((BEGUN, "2.75"), (LATER, "3.10")), "credited_accounts": ["lost"]}
    typed.write("credits.json", json.dumps(fewer))
    assert "credited_accounts: lost, replayed, slowed → lost" in typed.run("rates", "diff", "-f", "credits.json").stdout
    (setting,) = json.loads(typed.run("rates", "diff", "-f", "credits.json", "--json").stdout)["settings"]
    assert setting == {"name": "credited_accounts", "before": ["lost", "replayed", "slowed"], "after": ["lost"]}
    typed.write("wrong.yaml", "currency: EUR\ncards: [{model: H200, tier: spot, price_per_gpu_hour: 2.5}]\n")
    wrong = typed.run("rates", "diff", "-f", "wrong.yaml", code=6).stdout
    assert "must be a text such as" in wrong
