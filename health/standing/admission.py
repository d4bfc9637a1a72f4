"""Admission: may this GPU take this tier's work now? By standing, contact, cordons, overrides, cleanliness.

The planner decides on its snapshot; the placement service decides again inside the commit (I3).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.policy.tiers import TierPolicy
from muster.domain.states import Contact, Standing


class Refusal(StrEnum):
    """The reason why a GPU is not admitted. Named constants, so that explanations, metrics and tests agree."""

    MIG_ENABLED = "mig_enabled"
    NODE_CONTACT = "node_contact"
    CORDONED = "cordoned"
    BURN_IN = "burn_in"
    REPORTED = "reported"
    ASSIGNED = "assigned"
    STANDING = "standing"
    RECLAIMABLE_ONLY = "reclaimable_only"


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """Facts that admission reads.

    ``is_reported``: a report that would condemn it waits for the judge. ``is_reclaimable_only``: its probation is too
    young for a tier from which no rule reclaims it. ``override`` is a person's standing in force. It never hides the
    evidence: a GPU quarantined since is out in spite of the override. A person who knows better dismisses the evidence.
    """

    standing: Standing
    contact: Contact
    is_cordoned: bool = False
    is_assigned: bool = False
    is_burning_in: bool = False
    is_reported: bool = False
    is_reclaimable_only: bool = False
    is_mig_enabled: bool = False
    override: Standing | None = None


def refusal_of(facts: AdmissionFacts, tier: TierPolicy) -> Refusal | None:
    """Return None when the GPU is admitted to ``tier``, else the first reason why not, the most lasting first."""
    return next(_refusals(facts, tier), None)


def refusals_of(facts: AdmissionFacts, tier: TierPolicy) -> tuple[Refusal, ...]:
    """Return every reason why the GPU is not admitted to ``tier``, the most lasting first; none where it is."""
    return tuple(_refusals(facts, tier))


def _refusals(facts: AdmissionFacts, tier: TierPolicy) -> Iterator[Refusal]:
    if facts.is_mig_enabled:
        yield Refusal.MIG_ENABLED
    if effective_standing(facts.standing, facts.override) not in tier.standings:
        yield Refusal.STANDING
    elif facts.is_reclaimable_only and facts.override is None and tier.notice_s is None:
        yield Refusal.RECLAIMABLE_ONLY
    if facts.is_cordoned:
        yield Refusal.CORDONED
    if facts.contact is not Contact.LIVE:
        yield Refusal.NODE_CONTACT
    if facts.is_burning_in:
        yield Refusal.BURN_IN
    if facts.is_reported:
        yield Refusal.REPORTED
    if facts.is_assigned:
        yield Refusal.ASSIGNED


def text_of(refusal: Refusal, facts: AdmissionFacts, tier: TierPolicy) -> str:
    """Return the reason why one GPU is not admitted as text for people."""
    if refusal is Refusal.STANDING:
        taken = " or ".join(tier.standings)
        return f"its standing is {effective_standing(facts.standing, facts.override)}, and this tier accepts {taken}"
    return _REFUSAL_TEXTS[refusal]


_REFUSAL_TEXTS: Final[Mapping[Refusal, str]] = {
    Refusal.MIG_ENABLED: "it is in MIG mode, in which no job can use it",
    Refusal.NODE_CONTACT: "its node is silent or lost",
    Refusal.CORDONED: "it is cordoned",
    Refusal.RECLAIMABLE_ONLY: "the first part of its probation is for reclaimable tiers only",
    Refusal.BURN_IN: "a burn-in runs on it",
    Refusal.REPORTED: "a report that would condemn it has not been judged yet",
    Refusal.ASSIGNED: "a job holds it, or it is being cleaned",
}
