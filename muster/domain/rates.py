"""Rate cards: what an hour of a GPU costs, by its model and tier, from when on. One document holds them all."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import AwareDatetime, BeforeValidator, Field, WithJsonSchema, model_validator

from muster.domain.strict import Line, Name, StrictModel

PRICE: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
MOST_DECIMALS: Final = 4
"""Digits behind the point of a bill's amounts, at most."""
HOUR: Final = timedelta(hours=1)


def _price_text(given: Any) -> Any:
    if not isinstance(given, str) or not PRICE.fullmatch(given):
        raise ValueError(
            'must be a text such as "2.75", with at most 9 digits before the point and 6 behind it: a number of JSON or'
            " YAML may lose digits"
        )
    return given


Price = Annotated[
    str, BeforeValidator(_price_text), WithJsonSchema({"type": "string", "pattern": f"^{PRICE.pattern}$"})
]


class CreditedAccount(StrEnum):
    """The accounts of the ledger whose time may be given back."""

    LOST = "lost"
    REPLAYED = "replayed"
    SLOWED = "slowed"
    RECLAIM_LOST = "reclaim_lost"


class RateCard(StrictModel):
    """The price of an hour of one GPU of a model in a tier, from ``begins_at`` on until the next card of both."""

    model: Annotated[Line, Field(max_length=128)]
    tier: Name
    begins_at: Annotated[AwareDatetime, Field(strict=False)]
    price_per_gpu_hour: Price

    @model_validator(mode="after")
    def _begins_with_an_hour(self) -> Self:
        if self.begins_at.utcoffset():
            raise ValueError("begins_at must be in UTC, with Z at its end")
        if self.begins_at.replace(minute=0, second=0, microsecond=0) != self.begins_at:
            raise ValueError(
                "begins_at must be a whole hour of UTC: the ledger counts by the hour, so a card that begins within one"
                " could not be charged exactly"
            )
        return self

    @property
    def price(self) -> Decimal:
        return Decimal(self.price_per_gpu_hour)


class RateCards(StrictModel):
    """All rate cards of an installation, in one currency.

    ``currency``: its code of ISO 4217. ``decimals``: digits behind the point to which a bill line is rounded.
    ``credited_accounts``: time of these accounts is given back where a measurement shows that the fleet is to blame.
    """

    currency: Annotated[str, Field(pattern=r"^[A-Z]{3}$")]
    decimals: Annotated[int, Field(ge=0, le=MOST_DECIMALS)] = 2
    credited_accounts: Annotated[tuple[CreditedAccount, ...], Field(max_length=4)] = (
        CreditedAccount.LOST,
        CreditedAccount.REPLAYED,
        CreditedAccount.SLOWED,
    )
    cards: Annotated[tuple[RateCard, ...], Field(max_length=5_000, strict=False)]

    @model_validator(mode="after")
    def _one_price_at_a_time(self) -> Self:
        seen = set[tuple[str, str, datetime]]()
        for card in self.cards:
            key = (card.model, card.tier, card.begins_at)
            if key in seen:
                raise ValueError(f"two cards of {card.model} in {card.tier} begin at {card.begins_at.isoformat()}")
            seen.add(key)
        return self


class Tariff:
    """The prices of rate cards by time."""

    def __init__(self, cards: Sequence[RateCard]) -> None:
        self._by_key: dict[tuple[str, str], list[tuple[datetime, Decimal]]] = {}
        for card in sorted(cards, key=lambda each: each.begins_at):
            self._by_key.setdefault((card.model, card.tier), []).append((card.begins_at, card.price))

    def price(self, model: str, tier: str | None, at: datetime) -> Decimal | None:
        """Return the price of an hour of a GPU at a time, or None where no card has begun: it is unpriced."""
        found = None
        for begins_at, price in self._by_key.get((model, tier or ""), ()):
            if begins_at > at:
                break
            found = price
        return found

    def prices_in(self, tier: str, at: datetime) -> dict[str, Decimal]:
        """Return model → price of the models that have one in the tier."""
        found = ((model, self.price(model, tier, at)) for model, of in self._by_key if of == tier)
        return {model: price for model, price in found if price is not None}

    def keys(self) -> set[tuple[str, str]]:
        return set(self._by_key)

    def changes(self, start: datetime, end: datetime) -> list[datetime]:
        """Return the times after ``start`` and before ``end`` at which any price changes."""
        every = (begins_at for cards in self._by_key.values() for begins_at, _ in cards)
        return sorted({begins_at for begins_at in every if start < begins_at < end})


@dataclass(frozen=True, slots=True)
class RateChange:
    """One card in which two documents differ. A price is None where that document has no such card."""

    model: str
    tier: str
    begins_at: datetime
    before: str | None
    after: str | None


def rate_changes(before: RateCards | None, after: RateCards) -> list[RateChange]:
    """Return the cards that differ, by model, tier and time."""
    old, new = ({} if before is None else _by_key(before)), _by_key(after)
    return [
        RateChange(*key, old.get(key), new.get(key)) for key in sorted({*old, *new}) if old.get(key) != new.get(key)
    ]


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A field besides the cards in which two documents differ. ``before`` None: there was no document."""

    name: str
    before: Any
    after: Any


def setting_changes(before: RateCards | None, after: RateCards) -> list[SettingChange]:
    """Return the fields besides the cards that differ, such as the currency."""
    old, new = ({} if each is None else each.model_dump(mode="json", exclude={"cards"}) for each in (before, after))
    return [SettingChange(name, old.get(name), value) for name, value in new.items() if old.get(name) != value]


def changed_past(before: RateCards, after: RateCards, now: datetime) -> Iterator[str]:
    """Yield what ``after`` would change about hours that have begun and had a price: bills of them would change."""
    until = now.replace(minute=0, second=0, microsecond=0)
    old, new = Tariff(before.cards), Tariff(after.cards)
    begun = [card for card in before.cards if card.begins_at <= until]
    if begun and (before.currency, before.decimals) != (after.currency, after.decimals):
        yield f"amounts in {before.currency} with {before.decimals} decimals"
    was_credited, is_credited = (", ".join(sorted(each.credited_accounts)) or "none" for each in (before, after))
    if begun and was_credited != is_credited:
        yield f"credits for time in {was_credited} would become credits for {is_credited}"
    times = sorted({card.begins_at for card in (*before.cards, *after.cards) if card.begins_at <= until})
    for model, tier in sorted(old.keys()):
        for at in times:
            was, becomes = old.price(model, tier, at), new.price(model, tier, at)
            if was is not None and was != becomes:
                words = "none" if becomes is None else f"{becomes}"
                yield f"{model} in {tier} from {at:%Y-%m-%dT%H:%MZ} on: {was} would become {words}"
                break


def _by_key(cards: RateCards) -> Mapping[tuple[str, str, datetime], str]:
    return {(card.model, card.tier, card.begins_at): card.price_per_gpu_hour for card in cards.cards}
