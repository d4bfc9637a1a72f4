"""The executive page: each tile next to the period before, its state as text, and the tables as CSV."""

import csv
from datetime import datetime, timedelta
from io import StringIO

import pytest

from console.measure_tiles import Tile
from control.core.unit_of_work import utc_now
from ledger.accounts import Account
from tests.console.conftest import Console
from tests.console.test_figures import counted
from tests.control.ledger.test_charges import MS, add_hours, card, set_cards
from tests.control.ledger.test_spending import add_fact

PAGE = "/console/executive?range=7d"


def at(days: int) -> datetime:
    return utc_now().replace(minute=0, second=0, microsecond=0) - timedelta(days=days)


@pytest.fixture
def used(seen: Console) -> Console:
    """Have a tenant train 6 of 8 GPU-hours within the last week, and 2 of 8 in the week before; 3 EUR an hour."""
    add_hours(seen.units, at(1), at(9))
    for days, trained in ((1, 6), (9, 2)):
        add_fact(seen.units, at(days), Account.PRODUCTIVE, trained * MS, seen.fleet.tenant_id)
        add_fact(seen.units, at(days), Account.FREE, (8 - trained) * MS)
    set_cards(seen.units, card(at(30).replace(hour=0), "3.00"))
    return seen


def rows_of(seen: Console, table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(seen.get(f"/console/executive.csv?range=7d&table={table}").text)))


def test_an_empty_fleet_without_jobs_states_it_in_words(seen: Console) -> None:
    for page in (PAGE, "/console/executive?range=24h", "/console/executive?since=2026-01-01&until=2026-01-31"):
        words = seen.text(page)
        for nothing in (
            "no job ended",
            "no rate cards are set",
            "no hour is counted",
            "no GPU is recorded",
            "No tenant used a GPU in that time",
            "not counted yet",
        ):
            assert nothing in words
        assert "0.0%" not in words
    assert seen.get("/console/executive.json?range=7d&compare=true").status_code == 200
    assert {row["value"] for row in rows_of(seen, "tiles")} == {""}


def test_each_value_stands_next_to_the_period_before_with_its_state(used: Console) -> None:
    counted(used, "succeeded", 3)
    counted(used, "infrastructure", 1)
    counted(used, "succeeded", 5, days=9)
    words = used.text(PAGE)
    assert "Job success rate 75.0% target missed before 100.0%, -25.0 points target: at least 99 % in a week" in words
    assert "Goodput 75.0% better before 25.0%, +50.0 points no target" in words
    assert "Charged to tenants 18.00 EUR changed before 6.00 EUR, +200.0% no target" in words
    assert "MTBF – no outage by a fault before: nothing" in words
    tiles = {row["tile"]: row for row in rows_of(used, "tiles")}
    assert tiles["Job success rate"]["value"] == "0.75"
    assert tiles["Allocation"]["state"] == "better"


def test_tables_are_on_the_page_and_in_the_csv(used: Console) -> None:
    words = used.text(PAGE)
    assert "6.0 18.00 EUR 6.00 +200.0% 0.0" in words
    assert "productive 6.00 75.00% 2.00 +50.0 points first executions of steps" in words
    (cost,) = rows_of(used, "tenants")
    assert (cost["gpu_hours"], cost["charged"], cost["before"], cost["currency"]) == (
        "6.000000",
        "18.00",
        "6.00",
        "EUR",
    )
    assert [row["account"] for row in rows_of(used, "accounts")] == ["productive", "free"]
    objectives = rows_of(used, "objectives")
    assert {"production", "standard"} <= {row["class"] for row in objectives}
    assert rows_of(used, "classes") == []


def test_tables_are_sorted_by_their_values(used: Console) -> None:
    add_fact(used.units, at(1), Account.PRODUCTIVE, 40 * MS, used.other_tenant)
    for sort, hours in (
        ("tenants.gpu_hours", ["6.000000", "40.000000"]),
        ("-tenants.gpu_hours", ["40.000000", "6.000000"]),
    ):
        page = used.get(f"{PAGE}&sort={sort}").text
        assert f'aria-sort="{"descending" if sort.startswith("-") else "ascending"}"' in page
        assert [row["gpu_hours"] for row in rows_of(used, f"tenants&sort={sort}")] == hours
    assert used.get(f"{PAGE}&sort=tenants.colour").status_code == 422


def test_links_keep_the_chosen_time(used: Console) -> None:
    page = used.get(PAGE).text
    for path in ("/console/costs?range=7d", "/console/utilisation?range=7d", "/console/capacity?range=7d"):
        assert f'href="{path}"' in page
    dates = f"since={at(9):%Y-%m-%d}&amp;until={at(1):%Y-%m-%d}"
    page = used.get(f"/console/executive?{dates.replace('&amp;', '&')}").text
    assert f'href="/console/utilisation?{dates}"' in page
    assert f'href="/console/costs?{dates}"' in page
    assert 'href="/console/costs"' in used.get("/console/executive?range=1y").text, "which shows a month at most"


def test_an_executive_page_is_of_the_whole_fleet(used: Console) -> None:
    for path in ("executive", "executive.csv", "executive.json"):
        assert used.get(f"/console/{path}", "tenant_member").status_code == 403
        assert used.get(f"/console/{path}?since=2026-02-30").status_code == 422
    assert used.get("/console/executive.csv?table=none").status_code == 422
    assert "/console/executive" not in used.get("/console/figures", "tenant_member").text
    assert "/console/executive" in used.get("/console/figures").text


@pytest.mark.parametrize(
    ("value", "before", "bound", "better", "state"),
    [
        (0.99, 0.5, 0.99, "higher", ("target met", "good")),
        (0.98, 0.5, 0.99, "higher", ("target missed", "bad")),
        (0.2, 0.1, 0.1, "lower", ("target missed", "bad")),
        (0.2, 0.1, None, "lower", ("worse", "warn")),
        (0.2, 0.1, None, "neither", ("changed", "")),
        (0.2, 0.20001, None, "lower", ("unchanged", "")),
        (0.2635, 0.2631, None, "higher", ("unchanged", "")),
        (0.0, 0.0, None, "higher", ("unchanged", "")),
        (0.2, None, None, "higher", ("not comparable", "")),
        (None, 0.2, 0.1, "higher", ("no job ended", "none")),
    ],
)
def test_a_tile_states_its_target_else_its_change(
    value: float | None, before: float | None, bound: float | None, better: str, state: tuple[str, str]
) -> None:
    tile = Tile("a", "", value, before, "/", better, "no job ended", bound=bound)  # type: ignore[arg-type]
    assert (tile.state, tile.tone) == state
