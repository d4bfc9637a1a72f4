"""Money: rate cards, costs, budgets and statements, as the API answers and accepts them.

Amounts and prices are texts of decimal numbers: a number of JSON may lose digits.
"""

from typing import NotRequired

from typing_extensions import TypedDict

from muster.documents.effects import Trial
from muster.documents.fields import Json, Moment, Page


class RateVersion(TypedDict):
    """One version of the rate cards. ``created_by``, ``reason``: null for tenants."""

    version: int
    is_active: bool
    created_at: Moment
    created_by: str | None
    reason: str | None


class RateVersionPage(Page):
    items: list[RateVersion]


class Rates(TypedDict):
    """The rate cards. ``version`` and what is about it are null while none were set: then nothing has a price.

    ``document``: `currency`, `decimals`, `credited_accounts` and `cards`; null while none were set.
    """

    version: int | None
    is_active: bool
    created_at: Moment | None
    created_by: str | None
    reason: str | None
    document: Json | None


class ChangedRates(Rates, Trial):
    """The rate cards after a change."""


class NewRates(TypedDict):
    """Rate cards to set, whole: a card that is left out ends.

    ``corrects_past``: also where prices of hours change that have begun.
    """

    document: Json
    reason: str
    corrects_past: NotRequired[bool]
