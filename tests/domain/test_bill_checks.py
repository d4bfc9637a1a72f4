"""A bill is computed again: all that the server writes adds up, each wrong value is found, and no form breaks it."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.money_views import line_view, sums_view
from ledger.accounts import Account
from ledger.bills import Line, LineKey, sums
from muster.domain.bill_checks import fault_of_bill
from muster.domain.rates import MOST_DECIMALS

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = LineKey("ten_a", "job_a", "H200", "spot", NOON, Account.PRODUCTIVE)
MS = st.integers(min_value=-(10**9), max_value=10**13)
PRICES = st.none() | st.decimals(0, 10**6, places=6).map(abs)
LINES = st.lists(st.builds(Line, st.just(KEY), PRICES, MS, MS, MS, st.just(NOON)), max_size=6)


def bill(lines: list[Line], decimals: int = 2) -> dict[str, Any]:
    """Return a statement as the API writes it."""
    own = [
        {
            **line_view(line, decimals),
            "job_id": "job_a",
            "num_ms": line.num_ms,
            "credited_ms": line.credited_ms,
            "provisional_ms": line.provisional_ms,
        }
        for line in lines
    ]
    return {"decimals": decimals, "lines": own, "sums": sums_view(sums(lines, decimals))}


def usual() -> dict[str, Any]:
    return bill([Line(KEY, Decimal("2.5"), 3_600_000, 1_800_000, 0, NOON), Line(KEY, None, 7_200_000, 0, 0, NOON)])


@given(LINES, st.integers(0, MOST_DECIMALS))
def test_every_bill_of_the_server_adds_up(lines: list[Line], decimals: int) -> None:
    assert fault_of_bill(bill(lines, decimals)) == ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("amount", "2.51", "3,600,000 ms at 2.5 an hour are 2.50 as its amount, not 2.51"),
        ("credit", "0.00", "1,800,000 ms at 2.5 an hour are -1.25 as its credit, not 0.00"),
        ("num_ms", 3_700_000, "its num_ms of 3,700,000 are 1.027778 gpu_hours, not 1.000000"),
        ("credited_ms", 1_900_000, "its credited_ms"),
        ("gpu_hours", "1.000001", "not 1.000001"),
        ("price_per_gpu_hour", "2.6", "2.60"),
        ("price_per_gpu_hour", None, "it has an amount, and no price"),
        ("price_per_gpu_hour", 2.5, "price_per_gpu_hour is no price: 2.5"),
        ("num_ms", "3600000", "num_ms is no number of milliseconds: '3600000'"),
        ("amount", "2,50", "amount is no number of a bill: '2,50'"),
    ],
)
def test_a_wrong_value_of_a_line_is_named(name: str, value: object, words: str) -> None:
    found = usual()
    found["lines"][0][name] = value
    fault = fault_of_bill(found)
    assert fault.startswith("line 1 (job_a, H200, spot, productive")
    assert words in fault


def test_a_line_without_fields_is_named_by_its_number() -> None:
    found = usual()
    found["lines"][1] = []
    assert fault_of_bill(found) == "line 2: it is no object with fields"


@pytest.mark.parametrize("name", sorted(usual()["sums"]))
def test_a_wrong_total_is_named(name: str) -> None:
    found = usual()
    found["sums"][name] = "99.00"
    assert f"{name}, not 99.00" in fault_of_bill(found)


def test_other_decimals_than_those_of_the_amounts_are_a_fault() -> None:
    assert "as its amount" in fault_of_bill(
        {**bill([Line(KEY, Decimal("0.01"), 10_000_000, 0, 0, NOON)], 4), "decimals": 2}
    )
    for unfit in (None, True, -1, MOST_DECIMALS + 1, "2"):
        assert "its decimals are" in fault_of_bill({**usual(), "decimals": unfit})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("1e999999999"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(["lines", "sums", "num_ms", "amount", "credit", "price_per_gpu_hour", "gpu_hours"]), JSON)
def test_a_value_of_any_other_form_is_a_fault_and_breaks_nothing(name: str, value: Any) -> None:
    found, expected = usual(), usual()
    holder = found if name in found else found["lines"][0]
    holder[name] = value
    assert fault_of_bill(found) != "" or found == expected


def test_a_field_that_is_missing_is_a_fault() -> None:
    for name in ("num_ms", "provisional_ms", "amount", "credit", "gpu_hours", "price_per_gpu_hour"):
        found = usual()
        del found["lines"][0][name]
        assert fault_of_bill(found), name
    assert fault_of_bill({}), "nothing at all"
