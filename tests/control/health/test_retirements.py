"""A board that is past repair stands before a person as one incident, until it is retired or its reason has ended."""

from datetime import timedelta

from control.health import interventions
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import EvidenceRow, Gpu, Incident, Repair
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.policy.document import Policy
from muster.domain.states import Standing
from muster.identity import new_id
from tests.control.health.conftest import GPU, JUDGE, UNLIMITED, Court, sample
from tests.fleet_factory import OPERATOR


def proposals(court: Court) -> list[Incident]:
    return [incident for incident in court.open_incidents() if incident.kind == "retirement_proposed"]


def fail_to_remap(court: Court) -> EvidenceRow:
    court.receive(sample(remap_failure=1.0))
    while court.judge():
        pass
    assert court.standing() is Standing.QUARANTINED
    (evidence,) = court.rows(EvidenceRow)
    assert isinstance(evidence, EvidenceRow)
    return evidence


def test_one_incident_states_which_board_why_and_what_to_do_and_closes_when_it_is_retired(court: Court) -> None:
    evidence = fail_to_remap(court)
    (found,) = proposals(court)
    assert (found.subject_type, found.subject_id) == ("gpu", GPU)
    assert "a row remap failed" in found.summary
    assert (found.payload["severity"], found.payload["node_id"]) == ("condemning", court.node_id)
    assert [each["id"] for each in found.payload["evidence"]] == [evidence.id]
    assert f"muster gpu retire {GPU}" in found.payload["to_do"]
    court.signal("again", code=64)
    while court.judge():
        pass
    assert [each.id for each in proposals(court)] == [found.id], "one, whatever else is found"
    with court.units.begin(OPERATOR, interventions.RETIRE) as unit:
        interventions.retire(unit, GPU, reason="sent back")
    while court.judge():
        pass
    (closed,) = (each for each in court.rows(Incident) if each.id == found.id)
    assert (closed.closed_by, closed.close_reason) == (JUDGE.name, "it is retired")
    assert len(court.events("incident.opened")) == len(court.events("incident.closed")) == 1


def test_it_closes_when_what_requests_it_is_dismissed(court: Court) -> None:
    evidence = fail_to_remap(court)
    with court.units.begin(OPERATOR, interventions.DISMISS) as unit:
        interventions.dismiss(unit, GPU, evidence.id, reason="read wrongly by that driver")
    while court.judge():
        pass
    assert proposals(court) == []
    assert court.standing() is Standing.HEALTHY


def test_repairs_that_are_used_up_propose_it_until_they_are_long_ago(court: Court) -> None:
    court.signal("ecc", code=95)
    with court.units.begin(JUDGE, interventions.START_REPAIR, quiet=True) as unit:
        serial = unit.session.get_one(Gpu, GPU).serial
        unit.session.add_all(
            Repair(
                id=new_id("repair"),
                gpu_uuid=GPU,
                serial=serial,
                fault_group="memory",
                action=RepairAction.RESET,
                reason="test",
                started_by="test",
                began_at=unit.now - timedelta(days=days),
                ended_at=unit.now - timedelta(days=days, hours=-1),
                outcome=RepairOutcome.FAILED,
            )
            for days in (1, 2, 3)
        )
    while court.judge():
        pass
    (found,) = proposals(court)
    assert "3 repairs of memory in 30 days" in found.summary
    court.clock.advance(27 * 86_400 + 1)
    while court.judge():
        pass
    assert proposals(court) == []
    assert court.standing() is Standing.QUARANTINED


def test_where_rules_retire_none_is_queried(court: Court) -> None:
    with court.units.begin(OPERATOR, ACTIVATE) as unit:
        changed = {"health": {"breaker": UNLIMITED, "repair": {"retires_by_rule": True}}}
        store_policy(unit, Policy.model_validate(changed), reason="test")
    court.receive(sample(remap_failure=1.0))
    while court.judge():
        pass
    assert court.standing() is Standing.RETIRED
    assert court.rows(Incident) == []
