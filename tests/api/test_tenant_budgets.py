"""Budgets of tenants by REST and by the command: set and lifted by operators, read by the tenant."""

from typing import Any

from tests.api.conftest import GOOD_JOB, Api
from tests.api.test_costs import priced as priced  # noqa: PLC0414  # a fixture
from tests.api.test_rates import get
from tests.api.typed import Typed
from tests.api.typed import typed as typed  # noqa: PLC0414  # a fixture


def put(api: Api, status: int = 200, *, actor: str = "operator", query: str = "", **body: Any) -> dict[str, Any]:
    path = f"/v1/tenants/{api.fleet.tenant_id}/budget{query}"
    answer = api.client.put(path, json={"reason": "contract", **body}, headers=api.headers(actor))
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_budget_of_nothing_is_spent_at_once_and_refuses_jobs(priced: Api) -> None:
    made = put(priced, amount="0", action="no_new_jobs")
    assert (made["is_spent"], made["share"], made["window"], made["currency"]) == (True, 100, "month", "EUR")
    refused = priced.client.post("/v1/jobs", json=GOOD_JOB, headers=priced.headers())
    assert refused.status_code == 409
    assert "the budget of the tenant, 0 EUR until" in refused.json()["detail"]
    seen = get(priced, f"/v1/tenants/{priced.fleet.tenant_id}/budget")
    assert (seen["set_by"], seen["reason"]) == (None, None)
    lifted = priced.client.post(
        f"/v1/tenants/{priced.fleet.tenant_id}/budget/lift", json={"reason": "paid"}, headers=priced.headers("operator")
    )
    assert lifted.status_code == 200, lifted.text
    assert priced.client.post("/v1/jobs", json=GOOD_JOB, headers=priced.headers()).status_code == 201


def test_bad_budgets_are_refused_by_field(priced: Api) -> None:
    assert put(priced, 422, amount=5)["errors"][0]["pointer"] == "/amount"
    assert put(priced, 422, amount="5", action="kill")["errors"][0]["pointer"] == "/action"
    early = put(priced, 422, amount="5", ends_at="2020-01-01T00:00:00Z")
    assert early["errors"][0]["pointer"] == "/ends_at"
    put(priced, 403, actor="tenant_admin", amount="5")


def test_the_command_sets_shows_and_lifts(typed: Typed, priced: Api) -> None:
    tenant = priced.fleet.tenant_id
    words = ("tenant", "budget", "set", tenant, "25.50", "--action", "no_new_jobs", "--reason", "contract")
    tried = typed.run(*words, "--dry-run", actor="operator").stdout
    assert "becomes 25.5 EUR, with no_new_jobs once it is spent" in tried
    typed.run(*words, actor="operator")
    shown = typed.run("tenant", "budget", "show", tenant).stdout
    assert "0.00 of 25.5 EUR are spent (0 %)" in shown
    assert "notices at 50 %, 80 %, 100 %" in shown
    spent = typed.run(
        "tenant", "budget", "set", tenant, "0", "--until", "2099-01-01T00:00:00Z", "--reason", "over", actor="operator"
    )
    assert "it is spent already" in spent.stderr
    typed.run("tenant", "budget", "lift", tenant, "--reason", "paid", actor="operator")
    assert "the tenant has no budget" in typed.run("tenant", "budget", "show", tenant, code=3).stderr
