"""The page of costs: groups next to the period before, budgets and their notices, prices and their versions."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from control.ledger import budgets
from ledger.accounts import Account
from muster.domain.budgets import BudgetAction
from muster.domain.ids import JobId
from tests.console.conftest import Console
from tests.control.ledger.test_charges import MODEL, MS, add, add_hours, card, set_cards
from tests.fleet_factory import OPERATOR
from tests.sent_statements import statements_of


@pytest.fixture
def job_id(seen: Console) -> JobId:
    """Return a job of the project vision that trained 3 GPU-hours in the hour that runs, and 2 forty days ago."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    found = seen.fleet.submit(labels={"project": "vision"})
    add_hours(seen.units, now, now - timedelta(days=40))
    add(seen.units, seen.fleet, now, Account.PRODUCTIVE, 3 * MS, job_id=found)
    add(seen.units, seen.fleet, now, Account.IDLE, MS, job_id=found)
    add(seen.units, seen.fleet, now - timedelta(days=40), Account.PRODUCTIVE, 2 * MS, job_id=found)
    set_cards(seen.units, card(now - timedelta(days=60), "1.25"))
    set_cards(seen.units, card(now - timedelta(days=60), "2.50"))
    return found


def test_costs_are_grouped_next_to_the_period_before(seen: Console, job_id: JobId) -> None:
    page = seen.text("/console/costs?by=project&compare=true")
    assert "10.00 EUR due over the last 30d; 5.00 in the period before, +100.0%" in page, page
    assert "vision 4.00 10.00 0.00 10.00 5.00 +100.0%" in page
    for by, name in (("class", "standard"), ("model", MODEL), ("tier", "on_demand"), ("department", "acme")):
        assert f"{name} 4.00 10.00" in seen.text(f"/console/costs?by={by}")
    lines = seen.get("/console/costs.csv?table=groups&by=project&compare=true").text.splitlines()
    assert lines[1] == "vision,4.000000,10.00,0.00,10.00,0.000000,5.00,1.0"
    assert (
        seen.get("/console/costs.csv?table=idle&sort=idle.due")
        .text.splitlines()[1]
        .endswith(f",{job_id},1.000000,2.50")
    )


def test_a_tenant_sees_its_own_costs_by_project_and_no_groups_of_tenants(seen: Console, job_id: JobId) -> None:
    assert "vision 4.00" in seen.text("/console/costs", "tenant_member")
    assert "vision 4.00" not in seen.text("/console/costs", "other_tenant")
    answer = seen.get("/console/costs?by=tenant", "tenant_member")
    assert answer.status_code == 422
    assert "is one of: project, class, model, tier, account" in answer.text
    assert seen.get("/console/costs.csv?table=jobs", "other_tenant").text.count("\n") == 1


def test_a_bad_address_names_its_fault(seen: Console, job_id: JobId) -> None:
    for query, words in (
        ("range=1y", "31 days at most"),
        ("sort=groups.colour", "is one of: "),
        ("prices=99999999999", ""),
        ("by=colour", ""),
    ):
        for path in ("costs", "costs.csv"):
            answer = seen.get(f"/console/{path}?{query}")
            assert answer.status_code == 422, query
            assert words in answer.text
    assert "is one of: budgets, groups" in seen.get("/console/costs.csv?table=x").text
    assert seen.get("/console/costs?prices=9").status_code == 404


def test_a_budget_is_first_set_and_then_keeps_its_notices_and_its_end(seen: Console, job_id: JobId) -> None:
    given: dict[str, Any] = {"action": "notify", "reason": "x", "step": "do"}
    first = seen.post("/console/costs/budgets", tenant_id=seen.fleet.tenant_id, amount="8", shares="40, 75 %", **given)
    assert first.status_code == 303
    page = seen.text("/console/costs")
    assert "acme 8.00 EUR 10.00 125 % spent notify 40, 75 %" in page, page
    address = f"/console/costs/budgets/{seen.fleet.tenant_id}"
    assert seen.post(address, amount="20", **given).status_code == 303
    assert "acme 20.00 EUR 10.00 50 % notice notify 40, 75 %" in seen.text("/console/costs")
    ends_at = datetime.now(UTC) + timedelta(days=9)
    with seen.units.begin(OPERATOR, budgets.SET) as unit:
        wanted = budgets.Wanted(Decimal(30), BudgetAction.NOTIFY, [60], ends_at=ends_at)
        budgets.set_budget(unit, seen.fleet.tenant_id, wanted, reason="the experiment")
    assert seen.post(address, amount="40", **given).status_code == 303
    with seen.units.begin(OPERATOR, budgets.READ, quiet=True) as unit:
        row = budgets.show(unit, seen.fleet.tenant_id).row
    assert (row.amount, row.shares, row.ends_at) == (Decimal(40), [60], ends_at)


def test_a_budget_that_cannot_be_set_names_the_field(seen: Console, job_id: JobId) -> None:
    given = {"tenant_id": seen.fleet.tenant_id, "amount": "8", "action": "notify", "reason": "x", "step": "do"}
    for field, value in (
        ("tenant_id", "ten_x"),
        ("amount", "-1"),
        ("action", "stop"),
        ("shares", "0"),
        ("shares", "a"),
    ):
        answer = seen.post("/console/costs/budgets", **{**given, field: value})
        assert answer.status_code == 422
        assert field in answer.text
    assert seen.post("/console/costs/budgets", "tenant_member", **given).status_code == 403


def test_older_versions_of_the_prices_are_shown_to_operators_alone(seen: Console, job_id: JobId) -> None:
    page = seen.text("/console/costs")
    assert "Prices of version 2" in page
    assert "version 1" in page
    older = seen.text("/console/costs?prices=1")
    assert "Prices of version 1, which is not in force" in older
    assert "1.25 EUR" in older
    assert "Versions of the rate cards" not in seen.text("/console/costs", "tenant_member")
    assert seen.get("/console/costs?prices=1", "tenant_member").status_code == 403


def test_a_job_that_was_used_in_the_period_before_alone_has_its_name(seen: Console, job_id: JobId) -> None:
    before = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=40)
    older = seen.fleet.submit(name="older")
    add(seen.units, seen.fleet, before, Account.PRODUCTIVE, MS, job_id=older)
    assert "older 0.00 0.00" in seen.text("/console/costs?compare=true&sort=jobs.due")
    assert f"\nolder,{older},0.000000,0.00" in seen.get("/console/costs.csv?table=jobs&compare=true").text


def test_more_jobs_take_as_many_statements(seen: Console, job_id: JobId) -> None:
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    others = [seen.fleet.submit(name=f"other-{number}") for number in range(3)]
    add(seen.units, seen.fleet, hour, Account.PRODUCTIVE, MS, job_id=others[0])
    nums = []
    for further in ((), others[1:]):
        for other in further:
            add(seen.units, seen.fleet, hour, Account.PRODUCTIVE, MS, job_id=other)
        with statements_of(seen.units.engine) as sent:
            page = seen.text("/console/costs")
        assert f"other-{len(further)} 1.00 2.50" in page, page
        nums.append(len(sent))
    assert nums[0] == nums[1] > 0
