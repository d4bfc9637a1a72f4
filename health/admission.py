"""Admission: may this GPU take this tier's work now? By standing, contact, cordons, overrides, cleanliness.

The planner asks it of its snapshot; the placement service asks it again inside the commit (I3).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.policy import TierPolicy
from muster.domain.states import Contact, Standing

_OUT: Final = frozenset({Standing.QUARANTINED, Standing.REPAIR, Standing.RETIRED})


class Refusal(StrEnum):
    """Why a GPU is not admitted. Named constants, so that explanations, metrics and tests agree."""

    MIG_ENABLED = "mig_enabled"
    NODE_CONTACT = "node_contact"
    CORDONED = "cordoned"
    BURN_IN = "burn_in"
    HELD = "held"
    STANDING = "standing"


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """What admission looks at. ``override`` is a person's standing in force; it never hides the evidence: what was
    quarantined since is out, whatever the override says. Who knows better dismisses the evidence.
    """

    standing: Standing
    contact: Contact
    is_cordoned: bool = False
    is_held: bool = False
    is_burning_in: bool = False
    is_mig_enabled: bool = False
    override: Standing | None = None


def refusal_of(facts: AdmissionFacts, tier: TierPolicy) -> Refusal | None:
    """None when the GPU is admitted to ``tier``, else the first reason why not, the most lasting first."""
    if facts.is_mig_enabled:
        return Refusal.MIG_ENABLED
    standing = facts.standing if facts.override is None or facts.standing in _OUT else facts.override
    if standing not in tier.standings:
        return Refusal.STANDING
    if facts.is_cordoned:
        return Refusal.CORDONED
    if facts.contact is not Contact.LIVE:
        return Refusal.NODE_CONTACT
    if facts.is_burning_in:
        return Refusal.BURN_IN
    return Refusal.HELD if facts.is_held else None
