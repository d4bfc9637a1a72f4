"""Admission: each reason by itself, and the most lasting one first."""

from dataclasses import replace

import pytest

from health.standing.admission import AdmissionFacts, Refusal, refusal_of
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.tiers import TierPolicy
from muster.domain.states import Contact, Standing

ON_DEMAND = DEFAULT_POLICY.tier("on_demand")
FIT = AdmissionFacts(standing=Standing.HEALTHY, contact=Contact.LIVE)


def test_the_first_part_of_a_probation_is_for_tiers_that_can_be_reclaimed() -> None:
    young = replace(FIT, standing=Standing.PROBATION, is_reclaimable_only=True)
    standings = ("HEALTHY", "PROBATION")
    kept = TierPolicy(priority=500, standings=standings)
    reclaimable = TierPolicy(priority=100, notice_s=120.0, standings=standings)
    assert refusal_of(young, kept) is Refusal.RECLAIMABLE_ONLY
    assert refusal_of(young, reclaimable) is None
    assert refusal_of(replace(young, is_reclaimable_only=False), kept) is None
    assert refusal_of(replace(young, override=Standing.HEALTHY), kept) is None, "a person knows better"


def test_a_healthy_free_gpu_on_a_live_host_is_admitted() -> None:
    assert refusal_of(FIT, ON_DEMAND) is None


@pytest.mark.parametrize(
    ("facts", "refusal"),
    [
        (replace(FIT, is_mig_enabled=True), Refusal.MIG_ENABLED),
        (replace(FIT, standing=Standing.UNPROVEN), Refusal.STANDING),
        (replace(FIT, standing=Standing.QUARANTINED), Refusal.STANDING),
        (replace(FIT, is_cordoned=True), Refusal.CORDONED),
        (replace(FIT, contact=Contact.SILENT), Refusal.NODE_CONTACT),
        (replace(FIT, contact=Contact.LOST), Refusal.NODE_CONTACT),
        (replace(FIT, is_burning_in=True), Refusal.BURN_IN),
        (replace(FIT, is_reported=True), Refusal.REPORTED),
        (replace(FIT, is_assigned=True), Refusal.ASSIGNED),
    ],
)
def test_each_reason_refuses_by_itself(facts: AdmissionFacts, refusal: Refusal) -> None:
    assert refusal_of(facts, ON_DEMAND) is refusal


@pytest.mark.parametrize("standing", sorted(set(Standing) - {Standing.HEALTHY}))
def test_only_what_the_tier_names_is_admitted(standing: Standing) -> None:
    spot = DEFAULT_POLICY.tier("spot")
    assert (refusal_of(replace(FIT, standing=standing), spot) is None) == (standing is Standing.PROBATION)
    assert refusal_of(replace(FIT, standing=standing), ON_DEMAND) is Refusal.STANDING


def test_an_override_stands_in_for_the_standing_both_ways() -> None:
    assert refusal_of(replace(FIT, standing=Standing.UNPROVEN, override=Standing.HEALTHY), ON_DEMAND) is None
    assert refusal_of(replace(FIT, override=Standing.QUARANTINED), ON_DEMAND) is Refusal.STANDING


def test_the_most_lasting_reason_is_named_first() -> None:
    worst = replace(FIT, standing=Standing.RETIRED, is_cordoned=True, contact=Contact.LOST, is_assigned=True)
    assert refusal_of(worst, ON_DEMAND) is Refusal.STANDING
