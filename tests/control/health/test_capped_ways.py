"""The account of capacity that rules take out, by the real judge in PostgreSQL (I10)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.fleet import cordons
from control.health import breakers
from control.health.breakers import CLOSE, READ, Scope
from control.health.gpu_details import detail_of
from control.health.repairs import MAY_STILL_RUN, begin_repair
from control.health.rule_cordons import REASON_CODE, hold_nodes_once
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Breaker, Cordon, Gpu, GpuStandingChange, Incident
from muster.domain.evidence.repairs import RepairAction, RepairVerb
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.states import Standing
from tests.control.health.conftest import JUDGE, Court
from tests.control.health.test_side_by_side import RISEN
from tests.fleet_factory import OPERATOR, enrol_host

NUM_HOSTS = 3


@pytest.fixture
def hall(court: Court) -> dict[NodeId, list[GpuUuid]]:
    """Three hosts of eight GPUs in one rack, under the caps of the default policy."""
    with court.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, DEFAULT_POLICY, reason="test")
    found = {}
    for number in range(NUM_HOSTS):
        node_id = enrol_host(court.units, f"hall{number}", num_gpus=8, rack="r0")
        stand_healthy(court, node_id)
        found[node_id] = [GpuUuid(f"GPU-hall{number}-{slot}") for slot in range(8)]
    return found


def stand_healthy(court: Court, node_id: NodeId) -> None:
    with court.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            for gpu in unit.session.scalars(select(Gpu).where(Gpu.node_id == node_id)):
                gpu.standing = standing
                at = unit.now - timedelta(days=1)
                unit.session.add(
                    GpuStandingChange(gpu_uuid=gpu.uuid, target=standing, at=at, reason="test", actor="test")
                )
            unit.session.flush()


def blip(court: Court, hall: dict[NodeId, list[GpuUuid]]) -> None:
    for number, node_id in enumerate(hall):
        court.signal(f"blip{number}", None, **RISEN, node_id=node_id)
    court.judge()


def cordoned_nodes(court: Court) -> set[NodeId]:
    rows = court.rows(Cordon)
    return {each.node_id for each in rows if each.reason_code == REASON_CODE and each.released_at is None}


def scopes(court: Court) -> dict[str, Scope]:
    with court.units.begin(OPERATOR, READ) as unit:
        return {each.name: each for each in breakers.list_breakers(unit)[0].scopes}


def test_holds_past_the_cap_are_proposed_in_one_incident_and_begin_after_the_closing(
    court: Court, hall: dict[NodeId, list[GpuUuid]]
) -> None:
    blip(court, hall)
    assert hold_nodes_once(court.units, JUDGE) == 1
    (first,) = cordoned_nodes(court)
    assert hold_nodes_once(court.units, JUDGE) == 0
    (incident,) = court.rows(Incident)
    assert incident.kind == "breaker_open"
    assert scopes(court)["rack:r0"].num_counted == 8
    assert scopes(court)["rack:r0"].num_proposed == 16
    other = next(node_id for node_id in hall if node_id != first)
    with court.units.begin(OPERATOR, READ) as unit:
        (proposal,) = detail_of(unit, hall[other][0]).breaker_proposals
        assert (proposal.way, proposal.subject_id) == ("node_hold", other)
    for scope in [each.name for each in scopes(court).values() if each.opened_at is not None]:
        with court.units.begin(OPERATOR, CLOSE) as unit:
            breakers.close_scope(unit, "quarantine", scope, reason="the switch restarted")
    assert hold_nodes_once(court.units, JUDGE) == 1, "one more unit"


def test_a_hold_where_results_may_be_wrong_passes_the_cap_and_counts(
    court: Court, hall: dict[NodeId, list[GpuUuid]]
) -> None:
    """As in the replay (``tests/health/replay/test_capped_ways.py``): the GPUs of the other nodes alone wait."""
    first, second, third = hall
    court.signal("first", None, **RISEN, node_id=first)
    court.judge()
    hold_nodes_once(court.units, JUDGE)
    court.signal("wrong", None, kind="xid", code=95, source="kernel_log", node_id=second)
    court.signal("third", None, **RISEN, node_id=third)
    court.judge()
    hold_nodes_once(court.units, JUDGE)
    assert cordoned_nodes(court) == {first, second}
    (incident,) = court.rows(Incident)
    assert sorted(incident.payload["gpus"]) == hall[third]
    assert (scopes(court)["rack:r0"].num_counted, scopes(court)["rack:r0"].num_proposed) == (16, 8)


def test_a_hold_that_a_person_released_counts_as_returned(court: Court, hall: dict[NodeId, list[GpuUuid]]) -> None:
    blip(court, {node_id: hall[node_id] for node_id in list(hall)[:1]})
    hold_nodes_once(court.units, JUDGE)
    (cordon,) = [each for each in court.rows(Cordon) if each.reason_code == REASON_CODE]
    court.clock.advance(1)
    with court.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, cordon.id, reason="checked")
    hold_nodes_once(court.units, JUDGE)
    assert not any(each["is_out"] for each in court.rows(Breaker)[0].state["quarantined"])


def test_suspects_past_the_cap_stay_in_service(court: Court, hall: dict[NodeId, list[GpuUuid]]) -> None:
    storm(court, hall)
    court.judge()
    standings = [court.standing(uuid) for own in hall.values() for uuid in own]
    assert standings.count(Standing.SUSPECT) == 1
    assert {standing for standing in standings if standing is not Standing.SUSPECT} <= {
        Standing.HEALTHY,
        Standing.PROBATION,
    }
    assert len(court.rows(Incident)) == 1


def storm(court: Court, hall: dict[NodeId, list[GpuUuid]]) -> None:
    """A fault of severity DEGRADED at the same moment on every GPU."""
    for node_id, uuids in hall.items():
        for uuid in uuids:
            lost(court, node_id, uuid)


def lost(court: Court, node_id: NodeId, uuid: GpuUuid) -> None:
    court.signal(f"of {uuid}", uuid, kind="xid", code=94, source="kernel_log", node_id=node_id)


def test_proposals_that_follow_extend_the_one_incident(court: Court, hall: dict[NodeId, list[GpuUuid]]) -> None:
    """A GPU that waits for a scope that was open before is entered once, however often it is proposed again."""
    first, second, third = hall
    for number, node_id in enumerate((first, second)):
        court.signal(f"blip{number}", None, **RISEN, node_id=node_id)
    court.judge()
    hold_nodes_once(court.units, JUDGE)
    (incident,) = court.rows(Incident)
    (held,) = cordoned_nodes(court)
    waiting = next(node_id for node_id in (first, second) if node_id != held)
    assert sorted(incident.payload["gpus"]) == hall[waiting]
    court.clock.advance(DEFAULT_POLICY.health.breaker.window_s + 1)
    court.signal("late blip", None, **RISEN, node_id=third)
    lost(court, third, hall[third][0])
    court.judge()
    for _ in range(2):
        hold_nodes_once(court.units, JUDGE)
    (incident,) = court.rows(Incident)
    assert sorted(incident.payload["gpus"]) == sorted([*hall[waiting], *hall[third]])
    assert incident.summary.endswith("16 GPUs wait for a person")
    by_judge, by_hold = court.events("incident.extended")
    assert by_judge.payload["gpus"] == hall[third][:1], "each event names what is new"
    assert sorted(by_hold.payload["gpus"]) == hall[third][1:]


def test_a_node_that_is_repaired_by_rule_counts_until_its_cordon_ends(
    court: Court, hall: dict[NodeId, list[GpuUuid]]
) -> None:
    """A reboot of one GPU's host keeps all eight from work. One whose end is unknown stands a while longer."""
    uuids = next(iter(hall.values()))
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        gpu = unit.session.get_one(Gpu, uuids[0])
        repair = begin_repair(unit, gpu, RepairAction.REBOOT, "driver", "due", RepairVerb.REBOOT)
    hold_nodes_once(court.units, JUDGE)
    assert scopes(court)["rack:r0"].num_counted == 8
    court.clock.advance(DEFAULT_POLICY.health.breaker.window_s + 1)
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.get_one(Cordon, repair.cordon_id).until = unit.now + MAY_STILL_RUN
    hold_nodes_once(court.units, JUDGE)
    assert scopes(court)["rack:r0"].num_counted == 8
    court.clock.advance(MAY_STILL_RUN.total_seconds())
    hold_nodes_once(court.units, JUDGE)
    assert scopes(court)["rack:r0"].num_counted == 0


def test_a_persons_repair_of_a_node_takes_nothing_from_the_account(
    court: Court, hall: dict[NodeId, list[GpuUuid]]
) -> None:
    with court.units.begin(OPERATOR, ACTIVATE, quiet=True) as unit:
        gpu = unit.session.get_one(Gpu, next(iter(hall.values()))[0])
        begin_repair(unit, gpu, RepairAction.REBOOT, "driver", "due", RepairVerb.REBOOT)
    hold_nodes_once(court.units, JUDGE)
    assert scopes(court)["fleet"].num_counted == 0


def test_judges_side_by_side_take_out_no_more_than_one(court: Court, hall: dict[NodeId, list[GpuUuid]]) -> None:
    storm(court, hall)
    with ThreadPoolExecutor(2) as judges:
        list(judges.map(lambda _: court.judge(), range(2)))
    standings = [court.standing(uuid) for own in hall.values() for uuid in own]
    assert standings.count(Standing.SUSPECT) == 1
