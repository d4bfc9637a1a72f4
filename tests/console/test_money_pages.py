"""Pages of utilisation, costs and statements: their sums are the ledger's, and a tenant sees its own alone."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest

from console.utilisation_charts import MEANINGS, TIME_KINDS
from control.ledger import rates, storing
from ledger.accounts import Account
from tests.console.conftest import Console, words_of
from tests.control.ledger.test_charges import MODEL, MS, add, add_hours, card, set_cards
from tests.fleet_factory import OPERATOR


@pytest.fixture
def hour(seen: Console) -> datetime:
    """Return an hour of this month in which the demo tenant trained and lost time: the one that runs, so that it is."""
    found = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    add_hours(seen.units, found)
    add(seen.units, seen.fleet, found, Account.PRODUCTIVE, 3 * MS)
    add(seen.units, seen.fleet, found, Account.LOST, MS, cause="host", evidence=["evd_of_it"])
    set_cards(seen.units, card(found.replace(day=1, hour=0), "2.50"))
    sum_up(seen, found)
    return found


def sum_up(seen: Console, hour: datetime) -> None:
    with seen.units.begin(OPERATOR, rates.READ, quiet=True) as unit:
        storing.store_facts(unit.session, hour)


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
    page = seen.text(f"/console/utilisation?since={hour:%Y-%m-%d}")
    assert "evd_of_it" in page
    assert seen.get("/console/utilisation.json?range=1y").status_code == 200
    assert "Goodput 75.0%" in page, "of the whole fleet's time"
    tenant = seen.text("/console/utilisation", "other_tenant")
    assert "evd_of_it" not in tenant
    assert "Goodput" not in tenant
    assert "MTTR" not in seen.text("/console/utilisation?job=job_a"), "of one job there is none"
    assert seen.get("/console/utilisation?range=2h").status_code == 422


def test_the_period_before_stands_next_to_dates_and_in_the_chart(seen: Console, hour: datetime) -> None:
    day = hour.replace(hour=0) - timedelta(days=1)
    times = {
        day: (Account.PRODUCTIVE, 3),
        day - timedelta(hours=5): (Account.PRODUCTIVE, 2),
        day + timedelta(hours=1): (Account.LOST, 1),
    }
    add_hours(seen.units, *times)
    for at, (account, hours) in times.items():
        add(seen.units, seen.fleet, at, account, hours * MS)
        sum_up(seen, at)
    address = f"since={day:%Y-%m-%d}&until={day:%Y-%m-%d}&compare=true"
    page = seen.text(f"/console/utilisation?{address}")
    assert "productive 3.00 75.00% 2.00 -25.0 points" in page, page
    (chart,) = seen.get(f"/console/utilisation.json?{address}").json()["charts"]
    assert [line["name"] for line in chart["lines"]] == ["productive", "lost or slowed", "productive, before"]
    assert chart["lines"][-1]["points"] == [[1000 * (day + timedelta(hours=19)).timestamp(), 2.0]]
    assert seen.get("/console/utilisation?since=2026-02-30").status_code == 422
    assert "31 days at most" in seen.get("/console/utilisation?job=job_a&range=1y").text


def test_each_account_is_of_one_kind_in_the_chart_and_has_a_meaning() -> None:
    assert sorted(account for kind in TIME_KINDS for account in kind.accounts) == sorted(Account) == sorted(MEANINGS)


def test_tables_are_sorted_by_the_server_and_exported_in_the_same_order(seen: Console, hour: datetime) -> None:
    address = f"since={hour:%Y-%m-%d}"
    page = seen.get(f"/console/utilisation?{address}&sort=accounts.gpu_hours").text
    assert 'aria-sort="ascending"' in page
    assert "sort=-accounts.gpu_hours#accounts-title" in page, "a second press turns the order"
    for sort, names in (
        ("accounts.gpu_hours", ["lost", "productive"]),
        ("-accounts.gpu_hours", ["productive", "lost"]),
    ):
        lines = seen.get(f"/console/utilisation.csv?table=accounts&{address}&sort={sort}").text.splitlines()
        assert [line.split(",")[0] for line in lines] == ["account", *names]
    for path in ("utilisation", "utilisation.csv", "statements", f"statements/{hour:%Y-%m}"):
        answer = seen.get(f"/console/{path}?sort=-accounts.colour")
        assert answer.status_code == 422
        assert "is one of: " in answer.text
    assert "is one of: accounts, groups, entries" in seen.get("/console/utilisation.csv?table=x").text
    bill = seen.get(f"/console/statements/{hour:%Y-%m}/bill.csv?sort=lines.amount").text.splitlines()
    assert [",lost," in bill[1], ",productive," in bill[2]] == [True, True]
    assert seen.get("/console/utilisation.csv?table=entries", "other_tenant").text.count("\n") == 1


def test_time_without_a_group_is_named_by_the_kind_of_group(seen: Console, hour: datetime) -> None:
    for by, name in (("cause", "no cause"), ("rack", "unknown"), ("site", "unknown"), ("class", "not assigned")):
        hours = 3 if by == "cause" else 4
        assert f"{name} {hours}.00 " in seen.text(f"/console/utilisation?by={by}"), by
        lines = seen.get(f"/console/utilisation.csv?table=groups&by={by}").text.splitlines()
        assert lines[1].startswith(f"{name},{hours}."), by


def test_entries_are_sorted_across_pages(seen: Console, hour: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.pages.utilisation.ENTRIES_READ", 7)
    for minutes in range(30):
        add(seen.units, seen.fleet, hour, Account.LOST, minutes * 60_000)
    first = seen.get(f"/console/utilisation?since={hour:%Y-%m-%d}&sort=-entries.gpu_minutes").text
    (older,) = re.findall(r'href="(/console/utilisation[^"]*cursor=[^"]*)#entries-title"', first)
    second = seen.text(unescape(older))
    assert [number in words_of(first) for number in ("60.00", "29.00", "11.00", "10.00")] == [True, True, True, False]
    assert [number in second for number in ("11.00", "10.00", "0.00")] == [False, True, True]
    written = seen.get("/console/utilisation.csv?table=entries&sort=entries.gpu_minutes").text.splitlines()
    assert len(written) == 1 + 31
    assert [line.split(",")[5] for line in written[1:3]] == ["0.0", "1.0"]
    assert [float(line.split(",")[5]) for line in written[1:]] == [*range(30), 60], "each once, read in five parts"
    for cursor in ("x", unescape(older).partition("cursor=")[2]):
        assert seen.get(f"/console/utilisation?sort=entries.cause&cursor={cursor}").status_code == 400, (
            "of another order"
        )
