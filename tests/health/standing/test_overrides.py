"""A person's standing over a GPU's own: where one is taken, and what it does to admission."""

import itertools

import pytest

from health.standing.admission import AdmissionFacts, Refusal, refusal_of
from health.standing.interventions import RefusedMoveError
from health.standing.overrides import OVERRIDES, require_overridable
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Contact, Standing

SPOT = DEFAULT_POLICY.tiers["spot"]


@pytest.mark.parametrize(("standing", "wanted"), list(itertools.product(sorted(OUT_OF_SERVICE), OVERRIDES)))
def test_no_override_brings_back_what_is_out(standing: Standing, wanted: Standing) -> None:
    if standing is not Standing.RETIRED and wanted is Standing.QUARANTINED:
        require_overridable(standing, wanted)
        return
    with pytest.raises(RefusedMoveError, match=standing):
        require_overridable(standing, wanted)


@pytest.mark.parametrize(
    ("standing", "wanted"), list(itertools.product(sorted(set(Standing) - set(OUT_OF_SERVICE)), OVERRIDES))
)
def test_what_is_not_out_takes_any_of_them(standing: Standing, wanted: Standing) -> None:
    require_overridable(standing, wanted)


@pytest.mark.parametrize("standing", Standing)
def test_what_a_person_has_taken_out_is_admitted_nowhere(standing: Standing) -> None:
    facts = AdmissionFacts(standing=standing, contact=Contact.LIVE, override=Standing.QUARANTINED)
    assert refusal_of(facts, SPOT) is Refusal.STANDING
