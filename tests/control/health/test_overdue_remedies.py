"""A remedy that is due and is not begun needs a person, also where no rule may start one, or none does."""

import pytest

from control.fleet import cordons, overrides
from control.health import interventions
from control.policy.policies import ACTIVATE, store_policy
from muster.domain.policy.document import Policy
from muster.domain.states import Standing
from tests.control.health.conftest import GPU, UNLIMITED, Court
from tests.control.health.test_load_proofs import contained
from tests.control.health.test_rule_repairs import ALL, allow, ask, broken, due_incidents, once
from tests.control.health.test_taken_out import take_out
from tests.fleet_factory import OPERATOR

HOUR_S = 3600


def wait(court: Court, seconds: float) -> None:
    """The host stays in contact meanwhile."""
    court.clock.advance(seconds)
    court.beat()


@pytest.fixture
def quarantined(court: Court) -> Court:
    """Its agent may do everything, and no rule may start any of it."""
    ask(court, *ALL)
    broken(court)
    assert court.standing() is Standing.QUARANTINED
    return court


def test_one_incident_opens_at_the_time_of_the_policy_and_none_before(quarantined: Court) -> None:
    wait(quarantined, HOUR_S - 1)
    assert once(quarantined) == 0
    assert due_incidents(quarantined) == []
    wait(quarantined, 1)
    assert once(quarantined) == once(quarantined) == 0
    (incident,) = due_incidents(quarantined)
    assert incident.subject_id == GPU
    assert "needs a person for its reset" in incident.summary
    assert "XID 95" in incident.summary, "it says why"
    assert f"muster gpu repair {GPU} start" in incident.payload["to_do"]


def test_it_closes_once_a_person_begins(quarantined: Court) -> None:
    wait(quarantined, HOUR_S)
    once(quarantined)
    with quarantined.units.begin(OPERATOR, interventions.START_REPAIR) as unit:
        interventions.start_repair(unit, GPU, action=None, reason="as it says")
    once(quarantined)
    assert due_incidents(quarantined) == []


def test_a_gpu_that_a_person_has_taken_out_needs_no_other(quarantined: Court) -> None:
    take_out(quarantined, GPU, hours=9)
    wait(quarantined, HOUR_S)
    once(quarantined)
    assert due_incidents(quarantined) == []
    with quarantined.units.begin(OPERATOR, overrides.RELEASE) as unit:
        overrides.release(unit, GPU, reason="seen to")
    once(quarantined)
    assert len(due_incidents(quarantined)) == 1


def test_the_policy_sets_the_time(quarantined: Court) -> None:
    document = {"attention": {"remedy_due_after_s": 60}, "health": {"breaker": UNLIMITED}}
    with quarantined.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate(document), reason="test")
    wait(quarantined, 60)
    once(quarantined)
    assert len(due_incidents(quarantined)) == 1


def test_a_remedy_that_a_rule_may_start_and_does_not_needs_a_person_with_the_reason(court: Court) -> None:
    ask(court, *ALL)
    allow(court, *ALL)
    broken(court)
    with court.units.begin(OPERATOR, cordons.CREATE) as unit:
        cordon = cordons.create(unit, node_id=court.node_id, reason="a fan is loud")
    wait(court, HOUR_S)
    assert once(court) == 0
    (incident,) = due_incidents(court)
    assert "a rule may start it, and has not: " in incident.summary
    assert "a fan is loud" in incident.summary
    with court.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id)
    assert once(court) == 1
    once(court)
    assert (court.standing(), due_incidents(court)) == (Standing.REPAIR, [])


def test_a_suspect_gpu_with_a_due_remedy_needs_its_quarantine_first(court: Court) -> None:
    court.beat()
    contained(court)
    assert court.standing() is Standing.SUSPECT
    wait(court, HOUR_S)
    once(court)
    (incident,) = due_incidents(court)
    assert "it is SUSPECT, and no repair begins before its quarantine" in incident.summary
    assert f"muster gpu quarantine {GPU}" in incident.payload["to_do"]
    take_out(court, GPU)
    once(court)
    assert due_incidents(court) == []
