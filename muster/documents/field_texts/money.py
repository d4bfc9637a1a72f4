"""Fields of money: rate cards, costs, budgets, statements."""

from typing import Final

MONEY_TEXTS: Final[dict[str, str]] = {
    "RateCard.begins_at": "The whole hour of UTC from which on it holds, until the next card of its model and tier.",
    "RateCard.model": "The model of GPU, as the GPUs report it.",
    "RateCard.price_per_gpu_hour": "The price of an hour of one GPU, as a text of at most 6 decimals.",
    "RateCard.tier": "The tier.",
    "RateCards.cards": "The cards.",
    "corrects_past": "Also where prices of hours change that have begun, and with them bills.",
}
