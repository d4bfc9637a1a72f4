"""Admission: may this GPU take this tier's work now? By standing, contact, cordons, overrides, cleanliness.

The planner asks it of its snapshot; the placement service asks it again inside the commit (I3).
"""

from dataclasses import dataclass
from enum import StrEnum

from muster.domain.policy import TierPolicy
from muster.domain.states import Contact, Standing


class Refusal(StrEnum):
    """Why a GPU is not admitted. Named constants, so that explanations, metrics and tests agree."""

    MIG_ENABLED = "mig_enabled"
    NODE_CONTACT = "node_contact"
    CORDONED = "cordoned"
    HELD = "held"
    STANDING = "standing"


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """What admission looks at. ``override`` is a person's standing in force; it never hides the evidence."""

    standing: Standing
    contact: Contact
    is_cordoned: bool = False
    is_held: bool = False
    is_mig_enabled: bool = False
    override: Standing | None = None


def refusal_of(facts: AdmissionFacts, tier: TierPolicy) -> Refusal | None:
    """None when the GPU is admitted to ``tier``, else the first reason why not, the most lasting first."""
    if facts.is_mig_enabled:
        return Refusal.MIG_ENABLED
    if (facts.override or facts.standing) not in tier.standings:
        return Refusal.STANDING
    if facts.is_cordoned:
        return Refusal.CORDONED
    if facts.contact is not Contact.LIVE:
        return Refusal.NODE_CONTACT
    return Refusal.HELD if facts.is_held else None
