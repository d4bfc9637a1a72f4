"""Rate cards: whole hours, exact texts, one price at a time, and what of the past they change."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from muster.domain.errors import ValidationFailedError
from muster.domain.rates import RateCards, Tariff, changed_past, rate_changes
from muster.domain.validation import validated

HOUR = timedelta(hours=1)
NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


def cards(*prices: tuple[datetime, str], currency: str = "EUR", **more: Any) -> RateCards:
    each = [
        {"model": "H200", "tier": "spot", "begins_at": at.isoformat(), "price_per_gpu_hour": price}
        for at, price in prices
    ]
    return validated(RateCards, {"currency": currency, "cards": each, **more})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"begins_at": "2026-11-28T12:30:00Z"}, "whole hour of UTC"),
        ({"begins_at": "2026-11-28T12:00:00+02:00"}, "must be in UTC"),
        ({"price_per_gpu_hour": 2.75}, "must be a text"),
        ({"price_per_gpu_hour": "2.1234567"}, "must be a text"),
        ({"price_per_gpu_hour": "-1"}, "must be a text"),
    ],
)
def test_a_card_that_could_not_be_charged_exactly_is_refused(change: dict[str, Any], words: str) -> None:
    card = {"model": "H200", "tier": "spot", "begins_at": "2026-11-28T12:00:00Z", "price_per_gpu_hour": "2", **change}
    with pytest.raises(ValidationFailedError, match=words):
        validated(RateCards, {"currency": "EUR", "cards": [card]})


def test_two_cards_for_one_time_are_refused() -> None:
    with pytest.raises(ValidationFailedError, match="two cards of H200 in spot"):
        cards((NOON, "1"), (NOON, "2"))


def test_a_price_holds_until_the_next_card() -> None:
    tariff = Tariff(cards((NOON, "2"), (NOON + 2 * HOUR, "3.5")).cards)
    at = [tariff.price("H200", "spot", NOON + hours * HOUR) for hours in (-1, 0, 1, 2, 50)]
    assert at == [None, Decimal(2), Decimal(2), Decimal("3.5"), Decimal("3.5")]
    assert tariff.price("H100", "spot", NOON) is None
    assert tariff.changes(NOON, NOON + 3 * HOUR) == [NOON + 2 * HOUR]


def test_a_price_of_hours_that_have_begun_is_named_where_it_changes() -> None:
    now = NOON + 90 * timedelta(minutes=1)
    before = cards((NOON, "2"), (NOON + 5 * HOUR, "4"))
    assert list(changed_past(before, cards((NOON, "2"), (NOON + 2 * HOUR, "9")), now)) == []
    assert list(changed_past(before, cards((NOON - HOUR, "1"), (NOON, "2")), now)) == []
    assert list(changed_past(before, cards((NOON, "3")), now)) == [
        "H200 in spot from 2026-11-28T12:00Z on: 2 would become 3"
    ]
    (ended,) = changed_past(before, cards((NOON + HOUR, "2")), now)
    assert ended.endswith("2 would become none")
    (money,) = changed_past(before, cards((NOON, "2"), currency="USD"), now)
    assert money == "amounts in EUR with 2 decimals"
    (credits_,) = changed_past(before, cards((NOON, "2"), (NOON + 5 * HOUR, "4"), credited_accounts=["lost"]), now)
    assert credits_ == "credits for time in lost, replayed, slowed would become credits for lost"


def test_cards_that_differ_are_listed() -> None:
    found = rate_changes(cards((NOON, "2")), cards((NOON, "3"), (NOON + HOUR, "4")))
    assert [(each.before, each.after) for each in found] == [("2", "3"), (None, "4")]
