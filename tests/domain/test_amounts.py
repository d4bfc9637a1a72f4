"""Money of GPU time is exact, and rounded once."""

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.amounts import MS_PER_HOUR, amount, gpu_hours, quotient, total

PRICES = st.decimals(min_value=0, max_value=1_000_000, places=6, allow_nan=False, allow_infinity=False)
TIMES = st.integers(min_value=-(10**15), max_value=10**15)


@pytest.mark.parametrize(
    ("num_ms", "price", "decimals", "expected"),
    [
        (MS_PER_HOUR, "2.75", 2, "2.75"),
        (1_800_000, "0.01", 2, "0.01"),  # half a cent goes up
        (1_799_999, "0.01", 2, "0.00"),
        (-1_800_000, "0.01", 2, "-0.01"),
        (MS_PER_HOUR * 3, "333.333333", 0, "1000"),
        (1, "0.000001", 4, "0.0000"),
    ],
)
def test_an_amount_is_rounded_half_away_from_zero(num_ms: int, price: str, decimals: int, expected: str) -> None:
    assert str(amount(num_ms, Decimal(price), decimals)) == expected


@given(TIMES, PRICES, st.integers(0, 4))
def test_an_amount_is_the_nearest_to_the_exact_one(num_ms: int, price: Decimal, decimals: int) -> None:
    exact = Fraction(num_ms) * Fraction(price) / MS_PER_HOUR
    found = amount(num_ms, price, decimals)
    assert abs(Fraction(found) - exact) * 2 <= Fraction(1, 10**decimals)
    assert -amount(-num_ms, price, decimals) == found


@given(st.lists(TIMES, max_size=20), PRICES)
def test_parts_of_a_line_are_summed_before_they_are_rounded(parts: list[int], price: Decimal) -> None:
    exact = Fraction(sum(parts)) * Fraction(price) / MS_PER_HOUR
    expected = Decimal(exact.numerator) / Decimal(exact.denominator)
    found = amount(sum(parts), price, 2)
    assert abs(found - expected.quantize(Decimal("0.01"), ROUND_HALF_UP)) <= Decimal("0.01")
    assert total([found, found], 2) == 2 * found


def test_a_price_with_more_digits_than_cards_have_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 6 decimals"):
        amount(1, Decimal("0.0000001"), 2)


@pytest.mark.parametrize(("divisor", "expected"), [(1, "1" + "0" * 40), (3, "3" * 40), (0.001, "1" + "0" * 43)])
def test_a_quotient_has_all_of_its_digits(divisor: float, expected: str) -> None:
    found = f"{quotient(Decimal(10) ** 40, divisor, 9):f}"
    assert found.split(".", maxsplit=1)[0] == expected
    assert len(found.split(".")[1]) == 9


def test_hours_are_shown_to_six_decimals() -> None:
    assert str(gpu_hours(1_000)) == "0.000278"
