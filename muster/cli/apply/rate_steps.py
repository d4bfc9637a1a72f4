"""Rate cards of a document: their faults, and the cards in which they differ from the active ones."""

from collections.abc import Collection, Mapping
from typing import Any

from muster.cli.apply.steps import Difference
from muster.cli.framework.document_files import validated_or_faults
from muster.domain.rates import RateCards, rate_changes, setting_changes
from muster.domain.validation import validated


def rates_of(document: Mapping[str, Any], tiers: Collection[str]) -> tuple[RateCards | None, list[dict[str, Any]]]:
    """Return the rate cards, or None with their faults. ``tiers``: the policy's; a card of another tier is a fault."""
    cards, faults = validated_or_faults(RateCards, dict(document))
    if cards is None:
        return None, list(faults)
    detail = f"the policy defines: {', '.join(sorted(tiers))}"
    unknown = [place for place, card in enumerate(cards.cards) if card.tier not in tiers]
    return cards, [{"pointer": f"/cards/{place}/tier", "detail": detail} for place in unknown]


def rate_differences(before: Mapping[str, Any] | None, after: RateCards) -> tuple[Difference, ...]:
    """Return the cards that differ, then other fields."""
    active = None if before is None else validated(RateCards, dict(before))
    cards = [
        Difference(f"{each.model} in {each.tier} from {each.begins_at:%Y-%m-%dT%H:%MZ}", each.before, each.after)
        for each in rate_changes(active, after)
    ]
    others = [Difference(each.name, each.before, each.after) for each in setting_changes(active, after)]
    return (*others, *cards)
