"""Pages of utilisation, costs and statements: their sums are the ledger's, and a tenant sees its own alone."""

from datetime import UTC, datetime, timedelta

import pytest

from ledger.accounts import Account
from tests.console.conftest import Console
from tests.control.ledger.test_charges import MODEL, MS, add, add_hours, card, set_cards


@pytest.fixture
def hour(seen: Console) -> datetime:
    """Return a counted hour of this month in which the demo tenant trained and lost time."""
    found = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    add_hours(seen.units, found)
    add(seen.units, seen.fleet, found, Account.PRODUCTIVE, 3 * MS)
    add(seen.units, seen.fleet, found, Account.LOST, MS, cause="host", evidence=["evd_of_it"])
    set_cards(seen.units, card(found.replace(day=1, hour=0), "2.50"))
    return found


def test_a_statement_is_shown_with_its_lines_and_files(seen: Console, hour: datetime) -> None:
    address = f"/console/statements/{hour:%Y-%m}"
    page = seen.text(address)
    assert "10.00 due EUR" in page
    assert "7.50" in page
    assert "entries and evidence" in page
    assert "productive" in seen.get(f"{address}/bill.csv").text
    assert "BilledCost" in seen.get(f"{address}/focus.csv").text
    assert seen.get(f"{address}/signed.json").status_code == 409
    assert seen.get("/console/statements/2026-13").status_code == 404
    assert "Nothing was used" in seen.text(address, "other_tenant")


def test_costs_are_the_sums_of_the_statement(seen: Console, hour: datetime) -> None:
    page = seen.text("/console/costs")
    assert "10.00 spent EUR" in page
    assert MODEL in page
    assert "0.00 spent EUR" in seen.text("/console/costs", "other_tenant")
    tenant = seen.fleet.tenant_id
    assert seen.post(f"/console/costs/budgets/{tenant}", amount="nan", action="notify", reason="x").status_code == 422
    done = seen.post(f"/console/costs/budgets/{tenant}", amount="5", action="notify", reason="x", step="do")
    assert done.status_code == 303
    assert "200 % spent" in seen.text("/console/costs")
    assert seen.post(f"/console/costs/budgets/{tenant}", "tenant_member", amount="5").status_code == 403


def test_losses_name_their_cause_and_evidence(seen: Console, hour: datetime) -> None:
    page = seen.text(f"/console/utilisation?month={hour:%Y-%m}")
    assert "evd_of_it" in page
    assert seen.get("/console/utilisation.json?range=1y").status_code == 200
    assert "evd_of_it" not in seen.text("/console/utilisation", "other_tenant")
    assert seen.get("/console/utilisation?range=2h").status_code == 422
