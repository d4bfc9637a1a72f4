"""Incidents follow from states: one as long as the state lasts, from the time on that the policy names."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select, update

from control.attempts.attempts import lock_job, step_job
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.fleet import cordons, maintenance
from control.hosts import drains
from control.hosts.read import detail_of
from control.incidents.incidents import close, open_incident
from control.incidents.keeping import KEEP
from control.incidents.read import READ, IncidentFilter, list_incidents
from control.jobs import jobs
from control.policy.policies import active_policy, store_policy
from control.system.attention import keep_attention_once
from muster.db.models import Cluster, Event, Incident, Job, Node, OutboxMessage
from muster.domain.errors import ConflictError
from muster.domain.evidence.incidents import CLOSED_BY_RULE, TO_DO, IncidentKind, to_do
from muster.domain.ids import JobId, NodeId
from muster.domain.lifecycle.job import HoldRequested
from muster.domain.policy.document import Policy
from muster.domain.principals import system_principal
from muster.domain.states import Contact
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

KEEPER = system_principal("reconciler")


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    """Its host is LIVE, and nothing needs a person."""
    found = make_fleet(units)
    found.beat()
    assert keep_attention_once(units, KEEPER) == 0
    return found


def kept(fleet: Fleet) -> list[tuple[str, str]]:
    """The open incidents after a round."""
    keep_attention_once(fleet.units, KEEPER)
    with fleet.units.read() as session:
        rows = session.scalars(select(Incident).where(Incident.closed_at.is_(None)).order_by(Incident.id)).all()
    return [(row.kind, row.subject_id) for row in rows]


def configure(fleet: Fleet, **attention: float) -> None:
    with fleet.units.begin(OPERATOR, KEEP) as unit:
        store_policy(unit, Policy.model_validate({"attention": attention}), reason="test")


def hold(fleet: Fleet) -> JobId:
    job_id = fleet.submit()
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        step_job(unit, lock_job(unit, job_id), HoldRequested("its image is not there"), active_policy(unit.session))
    return job_id


def lose(fleet: Fleet) -> None:
    """Its host was last in contact now."""
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.execute(update(Node).values(contact=Contact.LOST, last_heartbeat_at=unit.now))


@pytest.mark.parametrize("end", [jobs.release, jobs.cancel])
def test_a_job_on_hold_opens_one_incident_until_its_end(fleet: Fleet, end: object) -> None:
    job_id = hold(fleet)
    assert kept(fleet) == kept(fleet) == [("job_on_hold", job_id)]
    with fleet.units.begin(OPERATOR, KEEP) as unit:
        end(unit, job_id, reason="seen to")  # type: ignore[operator]  # one of both
    assert kept(fleet) == []
    with fleet.units.read() as session:
        events = session.scalars(select(Event.kind).where(Event.subject_type == "incident").order_by(Event.id)).all()
        (incident,) = session.scalars(select(Incident)).all()
    assert sorted(events) == ["incident.closed", "incident.opened"]
    assert incident.close_reason
    assert str(job_id) in to_do(incident.kind, incident.payload)


def test_keepers_at_once_open_one(fleet: Fleet) -> None:
    job_id, begun = hold(fleet), threading.Barrier(3)

    def keep() -> None:
        begun.wait()
        keep_attention_once(fleet.units, KEEPER)

    threads = [threading.Thread(target=keep) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with fleet.units.read() as session:
        assert session.scalars(select(Incident.subject_id)).all() == [job_id]


def test_a_suspect_program_has_an_incident_of_its_own(fleet: Fleet) -> None:
    job_id = hold(fleet)
    with fleet.units.begin(KEEPER, KEEP) as unit:
        open_incident(unit, IncidentKind.SUSPECT_PROGRAM, "job", job_id, "it breaks GPUs", {"evidence_ids": []})
    assert kept(fleet) == [("suspect_program", job_id)]


def test_a_job_may_be_on_hold_for_as_long_as_the_policy_lets_it(fleet: Fleet, clock: SetClock) -> None:
    configure(fleet, job_on_hold_after_s=600)
    job_id = hold(fleet)
    clock.advance(599)
    assert kept(fleet) == []
    clock.advance(1)
    assert kept(fleet) == [("job_on_hold", job_id)]


def test_a_later_change_of_a_job_does_not_restart_its_time_on_hold(fleet: Fleet, clock: SetClock) -> None:
    configure(fleet, job_on_hold_after_s=600)
    job_id = hold(fleet)
    clock.advance(600)
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.execute(update(Job).where(Job.id == job_id).values(updated_at=unit.now))
    assert kept(fleet) == [("job_on_hold", job_id)]


def test_a_node_is_lost_for_some_time_before_a_person_is_needed(fleet: Fleet, clock: SetClock) -> None:
    lose(fleet)
    clock.advance(899)
    assert kept(fleet) == []
    clock.advance(1)
    assert kept(fleet) == [("node_lost", fleet.node_id)]
    fleet.beat()
    assert kept(fleet) == []


def test_an_outage_of_the_control_plane_is_no_fault_of_a_host(fleet: Fleet, clock: SetClock) -> None:
    lose(fleet)
    clock.advance(3600)
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.execute(update(Cluster).values(accepts_heartbeats_since=unit.now))
    clock.advance(899)
    assert kept(fleet) == []
    clock.advance(1)
    assert kept(fleet) == [("node_lost", fleet.node_id)]


def test_an_incident_of_a_lost_node_outlasts_an_outage_of_the_control_plane(fleet: Fleet, clock: SetClock) -> None:
    lose(fleet)
    clock.advance(900)
    assert kept(fleet) == [("node_lost", fleet.node_id)]
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.execute(update(Cluster).values(accepts_heartbeats_since=unit.now))
    assert kept(fleet) == [("node_lost", fleet.node_id)]
    with fleet.units.read() as session:
        assert len(session.scalars(select(Incident.id)).all()) == 1, "it was neither closed nor opened again"
    fleet.beat()
    assert kept(fleet) == []


@pytest.fixture
def racks(units: UnitOfWorkFactory) -> dict[str, list[NodeId]]:
    """Four racks in two pods, with four hosts each."""
    levels = {"placement": {"levels": ["pod", "rack"]}}
    with units.begin(OPERATOR, KEEP) as unit:
        store_policy(unit, Policy.model_validate(levels), reason="test")
    found: dict[str, list[NodeId]] = {}
    with units.begin(OPERATOR, KEEP, quiet=True) as unit:
        for rack, pod in (("r1", "p1"), ("r2", "p1"), ("r3", "p2"), ("r4", "p2")):
            found[rack] = [NodeId(f"node_{rack}_{number}") for number in range(4)]
            unit.session.add_all(
                Node(
                    id=node_id, name=f"{rack}-{number}", contact=Contact.LIVE, address="127.0.0.1", num_gpus=8,
                    rack=rack, labels={"pod": pod}, created_at=unit.now, last_heartbeat_at=unit.now,
                )
                for number, node_id in enumerate(found[rack])
            )  # fmt: skip
    return found


def touch(units: UnitOfWorkFactory, node_ids: list[NodeId], contact: Contact) -> None:
    """Their last heartbeat is now."""
    with units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.execute(
            update(Node).where(Node.id.in_(node_ids)).values(contact=contact, last_heartbeat_at=unit.now)
        )


def rounds(units: UnitOfWorkFactory) -> tuple[int, dict[str, list[str]]]:
    """The number of changes of a round, and the nodes of each open incident."""
    changed = keep_attention_once(units, KEEPER)
    with units.read() as session:
        rows = session.scalars(select(Incident).where(Incident.closed_at.is_(None)).order_by(Incident.subject_id)).all()
    return changed, {
        row.subject_id: row.payload["node_names"] if row.subject_type == "domain" else [row.payload["node_name"]]
        for row in rows
    }


def test_nodes_that_are_lost_together_have_one_incident_for_their_domain(
    units: UnitOfWorkFactory, racks: dict[str, list[NodeId]], clock: SetClock
) -> None:
    touch(units, [*racks["r1"], *racks["r2"], racks["r3"][0]], Contact.LOST)
    clock.advance(900)
    in_pod = [f"{rack}-{number}" for rack in ("r1", "r2") for number in range(4)]
    assert rounds(units) == (2, {"pod:p1": in_pod, "node_r3_0": ["r3-0"]})
    assert rounds(units)[0] == 0, "nothing has changed"
    with units.read() as session:
        found = session.scalars(select(Incident).where(Incident.subject_type == "domain")).one()
        told = session.scalars(select(Event.payload).where(Event.subject_id == found.id)).one()
    assert found.summary.startswith("8 nodes of pod p1 are LOST, with 64 GPUs, and were lost together: ")
    assert "power, switches and the network" in to_do(found.kind, found.payload)
    assert (told["num_nodes"], told.keys() & {"node_ids", "node_names"}) == (8, set()), "an event stays small"


def test_such_an_incident_follows_its_nodes_and_closes_with_the_last(
    units: UnitOfWorkFactory, racks: dict[str, list[NodeId]], clock: SetClock
) -> None:
    touch(units, [*racks["r1"], *racks["r2"]], Contact.LOST)
    clock.advance(900)
    assert rounds(units)[0] == 1
    touch(units, [*racks["r1"], *racks["r2"][:3]], Contact.LIVE)
    assert rounds(units) == (1, {"pod:p1": ["r2-3"]})
    with units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.execute(update(Cluster).values(accepts_heartbeats_since=unit.now))
    assert rounds(units) == (0, {"pod:p1": ["r2-3"]}), "it outlasts an outage of the control plane"
    with units.begin(OPERATOR, KEEP) as unit:
        cordons.create(unit, node_id=racks["r2"][3], reason="its board is away")
    assert rounds(units) == (1, {})
    with units.read() as session:
        kinds = session.scalars(select(Event.kind).where(Event.subject_type == "incident").order_by(Event.id)).all()
        incident_id = session.scalars(select(Incident.id)).one()
    assert [kind.removeprefix("incident.") for kind in kinds] == ["opened", "extended", "closed"]
    assert incident_id


def test_an_incident_of_a_domain_is_found_by_each_of_its_nodes(
    units: UnitOfWorkFactory, racks: dict[str, list[NodeId]], clock: SetClock
) -> None:
    touch(units, racks["r1"], Contact.LOST)
    clock.advance(900)
    assert rounds(units)[1].keys() == {"rack:p1/r1"}
    with units.begin(OPERATOR, READ, quiet=True) as unit:
        by_node = {
            node: list_incidents(unit, IncidentFilter(subject_id=node), Part(9)) for node in ("node_r1_2", "node_r2_2")
        }
        shown = {node: detail_of(unit, node).incidents for node in by_node}
    for found in (by_node, shown):
        assert {node: [each.subject_id for each in some] for node, some in found.items()} == {
            "node_r1_2": ["rack:p1/r1"],
            "node_r2_2": [],
        }


def _cordon(unit: UnitOfWork, fleet: Fleet) -> None:
    cordons.create(unit, node_id=fleet.node_id, reason="its board is away")


def _drain(unit: UnitOfWork, fleet: Fleet) -> None:
    drains.drain(unit, fleet.node_id, reason="its board is away")


def _maintain(unit: UnitOfWork, fleet: Fleet) -> None:
    maintenance.declare(unit, fleet.node_id, reason="its board is away", until=unit.now + timedelta(hours=1))


@pytest.mark.parametrize("act", [_cordon, _drain, _maintain])
def test_a_lost_node_on_which_a_person_acts_needs_no_other(fleet: Fleet, clock: SetClock, act: object) -> None:
    lose(fleet)
    clock.advance(900)
    assert kept(fleet) == [("node_lost", fleet.node_id)]
    with fleet.units.begin(OPERATOR, KEEP) as unit:
        act(unit, fleet)  # type: ignore[operator]  # one of these
    assert kept(fleet) == []


def test_a_rule_that_holds_a_lost_node_is_no_person(fleet: Fleet, clock: SetClock) -> None:
    lose(fleet)
    with fleet.units.begin(KEEPER, KEEP) as unit:
        cordons.stand(unit, "node_fault", "a link is down", node_id=fleet.node_id)
    clock.advance(900)
    assert kept(fleet) == [("node_lost", fleet.node_id)]


def test_messages_that_were_given_up_need_a_person_for_an_hour(fleet: Fleet, clock: SetClock) -> None:
    with fleet.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        told: dict[str, Any] = {
            "topic": "wake",
            "key": "n",
            "payload": {},
            "created_at": unit.now,
            "next_try_at": unit.now,
            "tries": 9,
        }
        unit.session.add(OutboxMessage(**told, dead_at=unit.now, last_error="no broker answers"))
    assert kept(fleet) == [("messages_given_up", "outbox")]
    with fleet.units.read() as session:
        assert "no broker answers" in session.scalars(select(Incident.summary)).one()
    clock.advance(3600)
    assert kept(fleet) == []


def test_an_incident_that_follows_from_a_state_is_not_closed_by_hand(fleet: Fleet) -> None:
    hold(fleet)
    kept(fleet)
    with fleet.units.read() as session:
        incident_id = session.scalars(select(Incident.id)).one()
    with pytest.raises(ConflictError, match="not closed by hand"), fleet.units.begin(OPERATOR, KEEP) as unit:
        close(unit, incident_id, reason="enough")


def test_each_kind_has_what_to_do() -> None:
    assert TO_DO.keys() == set(IncidentKind)
    assert CLOSED_BY_RULE.keys() <= set(IncidentKind)
