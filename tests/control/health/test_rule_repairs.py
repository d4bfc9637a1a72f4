"""A rule starts the remedy that is due: once, of what is free, within caps, up the ladder; else it asks a person."""

import threading
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType

import msgspec
import pytest
from sqlalchemy import func, select, update

from control.fleet import cordons, maintenance, overrides
from control.health import interventions, repair_orders
from control.health.burn_ins import orders
from control.health.rule_repairs import start_repairs_once
from control.policy.policies import ACTIVATE, store_policy
from health.standing.account import BreakerState
from muster.db.models import (
    Allocation,
    AllocationGpu,
    AuditEntry,
    Breaker,
    Event,
    Gpu,
    GpuHold,
    Incident,
    Node,
    Repair,
)
from muster.domain.evidence.repairs import RepairAction, RepairBy, RepairOutcome, RepairVerb
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import Policy
from muster.domain.states import Standing
from muster.wire.repair import REPAIR_PROTOCOL, RepairOrder, RepairPoll
from tests.control.burn_in_case import Host
from tests.control.health.conftest import GPU, JUDGE, OTHER, UNLIMITED, Court
from tests.control.health.test_repair_orders import newest, report
from tests.fleet_factory import OPERATOR, enrol_host

ALL = tuple(RepairVerb)


def allow(court: Court, *verbs: str, breaker: Mapping[str, int] = MappingProxyType({}), **repair: object) -> None:
    changed = {"health": {"breaker": {**UNLIMITED, **breaker}, "repair": {"starts_by_rule": list(verbs), **repair}}}
    with court.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy.model_validate(changed), reason="test")


def host_of(court: Court, *gpus: GpuUuid) -> Host:
    return Host(court.units, court.node_id, gpus or (GPU, OTHER))


def ask(court: Court, *verbs: str, waiting: tuple[str, ...] = ()) -> RepairOrder | None:
    """Its agent asks, and states what it may do."""
    asked = RepairPoll(protocol=REPAIR_PROTOCOL, boot_id="boot-1", waiting=waiting, verbs=verbs)
    with court.units.begin(host_of(court).principal, repair_orders.POLL) as unit:
        return repair_orders.poll(unit, asked).order


def broken(court: Court, code: int = 95, *gpus: GpuUuid) -> None:
    """In contact, quarantined for that XID."""
    court.beat()
    for uuid in gpus or (GPU,):
        court.signal(f"xid/{uuid}/{code}/{court.now_ms}", uuid, code=code)
    settle(court)


def settle(court: Court) -> None:
    while court.judge():
        pass


def once(court: Court) -> int:
    return start_repairs_once(court.units, JUDGE)


def due_incidents(court: Court) -> list[Incident]:
    return [incident for incident in court.open_incidents() if incident.kind == "repair_due"]


def repairs(court: Court) -> list[Repair]:
    return [row for row in court.rows(Repair) if isinstance(row, Repair)]


@pytest.fixture
def ready(court: Court) -> Court:
    """Its agent may do everything, rules may start it, and one GPU is quarantined for an uncontained memory error."""
    ask(court, *ALL)
    allow(court, *ALL)
    broken(court)
    assert court.standing() is Standing.QUARANTINED
    return court


def test_an_agent_reports_what_it_may_do_and_it_is_kept_with_an_event_when_it_changes(court: Court) -> None:
    def kept() -> list[str]:
        with court.units.read() as session:
            return session.scalars(select(Node.repair_verbs).where(Node.id == court.node_id)).one()

    assert kept() == []
    ask(court, "reboot", "gpu_reset")
    ask(court, "gpu_reset", "reboot")
    assert kept() == ["gpu_reset", "reboot"]
    assert [event.payload["repair_verbs"] for event in court.events("node.repair_verbs")] == [["gpu_reset", "reboot"]]
    ask(court)
    assert kept() == []


def test_by_default_rules_start_nothing_and_ask_none(court: Court) -> None:
    ask(court, *ALL)
    broken(court)
    assert once(court) == 0
    assert (court.standing(), repairs(court), due_incidents(court)) == (Standing.QUARANTINED, [], [])


def test_a_rule_starts_what_is_due_once_and_leaves_what_why_and_by_whose_word(ready: Court) -> None:
    assert once(ready) == 1
    assert once(ready) == 0
    (row,) = repairs(ready)
    assert ready.standing() is Standing.REPAIR
    assert (row.action, row.verb, row.fault_group, row.started_by) == (
        RepairAction.RESET,
        RepairVerb.GPU_RESET,
        "memory",
        "system:judge",
    )
    assert "XID 95" in row.reason
    with ready.units.read() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "gpu.repair.start"))
        moves = session.scalars(select(Event).where(Event.kind == "gpu.repair")).all()
    assert entry.actor == "system:judge"
    assert (entry.detail["requested_by"], entry.detail["repair_id"]) == ("catalogue", row.id)
    assert [(event.subject_id, event.payload["cause"]) for event in moves] == [(GPU, "repair_started")]
    given = ask(ready, *ALL)
    assert given is not None
    assert given.repair_id == row.id


def test_two_processes_at_once_start_one(ready: Court) -> None:
    begun, found = threading.Barrier(2), list[int]()

    def check() -> None:
        begun.wait()
        found.append(once(ready))

    threads = [threading.Thread(target=check) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [0, 1]
    assert len(repairs(ready)) == 1


def test_two_processes_at_once_do_not_go_past_the_cap(court: Court) -> None:
    """Two hosts, so that they meet at no GPU: only the breaker's row keeps them in turn."""
    far = enrol_host(court.units, "far", num_gpus=2)
    ask(court, *ALL)
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Node).values(repair_verbs=[*ALL]))
    allow(court, "gpu_reset", by_rule_fleet_max=1)
    court.beat()
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Node).values(contact="LIVE"))
    court.signal("near", GPU, code=95)
    court.signal("far", GpuUuid("GPU-far-0"), code=95, node_id=far)
    settle(court)
    assert court.standing(GpuUuid("GPU-far-0")) is Standing.QUARANTINED
    begun, found = threading.Barrier(2), list[int]()

    def check() -> None:
        begun.wait()
        found.append(once(court))

    threads = [threading.Thread(target=check) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(found) == 1
    assert len(repairs(court)) == 1


def test_what_fails_and_times_out_is_followed_by_the_next_and_then_by_a_person(ready: Court) -> None:
    assert once(ready) == 1
    given = ask(ready, *ALL)
    assert given is not None
    assert report(host_of(ready), given, "failed").is_taken
    assert once(ready) == 1
    assert newest(ready.units).action is RepairAction.REBOOT
    assert ask(ready, *ALL) is not None
    ready.clock.advance(1501)
    settle(ready)
    assert newest(ready.units).outcome is RepairOutcome.TIMED_OUT
    assert once(ready) == 0, "the cordon says that its agent may still be at it"
    ready.clock.advance(901)
    ready.beat()
    assert once(ready) == 1
    assert newest(ready.units).action is RepairAction.FIELD_DIAGNOSIS
    given = ask(ready, *ALL)
    assert given is not None
    assert report(host_of(ready), given, "failed").is_taken
    settle(ready)
    assert once(ready) == 0
    assert len(repairs(ready)) == 3
    assert [incident.kind for incident in ready.open_incidents()] == ["retirement_proposed"], "one word, not two"


def test_a_job_that_still_holds_it_is_waited_for(court: Court) -> None:
    ask(court, *ALL)
    court.beat()
    job = court.fleet.submit(name="train", shape={"nodes": 1, "gpus_per_node": 1})
    court.fleet.cycle()
    used = court.fleet.attempts(job)[0].hosts[0].gpus[0]
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Node).values(repair_verbs=[*ALL], contact="LIVE"))
        node_id = unit.session.get_one(Gpu, used).node_id
    allow(court, *ALL)
    court.signal("ecc", used, code=95, node_id=node_id)
    settle(court)
    assert court.standing(used) is Standing.QUARANTINED
    assert once(court) == 0
    assert due_incidents(court) == [], "it waits, and no person is asked"
    with court.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        held = select(Allocation.id)
        unit.session.execute(
            update(AllocationGpu).where(AllocationGpu.allocation_id.in_(held)).values(state="CLEANING")
        )
        unit.session.execute(
            update(AllocationGpu).where(AllocationGpu.allocation_id.in_(held)).values(state="RELEASED")
        )
    assert once(court) == 1


def test_what_the_whole_host_feels_waits_for_what_is_guaranteed_there(ready: Court) -> None:
    broken(ready, 79, OTHER)
    allow(ready, "reboot")
    job = ready.fleet.submit(name="waits", shape={"nodes": 1, "gpus_per_node": 1})
    with ready.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.add(GpuHold(gpu_uuid=GpuUuid("GPU-many-5"), job_id=job, created_at=unit.now))
    assert once(ready) == 0
    with ready.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.delete(unit.session.get_one(GpuHold, "GPU-many-5"))
    assert once(ready) == 1
    assert newest(ready.units).gpu_uuid == OTHER


def test_one_repair_of_a_host_at_a_time(ready: Court) -> None:
    broken(ready, 95, OTHER)
    assert once(ready) == 1
    assert once(ready) == 0
    given = ask(ready, *ALL)
    assert given is not None
    assert report(host_of(ready), given).is_taken
    assert once(ready) == 1


def test_a_person_at_work_on_the_host_is_waited_for(ready: Court) -> None:
    broken(ready, 95, OTHER)
    with ready.units.begin(OPERATOR, interventions.START_REPAIR) as unit:
        interventions.start_repair(unit, OTHER, action=RepairAction.SWAP, reason="ticket 7", by=RepairBy.PERSON)
    assert once(ready) == 0


def test_a_persons_cordon_window_and_override_hold_it_back(ready: Court) -> None:
    with ready.units.begin(OPERATOR, cordons.CREATE) as unit:
        held = cordons.create(unit, gpu_uuid=GPU, reason="the vendor inspects it").id
    assert once(ready) == 0
    with ready.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, held, reason="seen")
    with ready.units.begin(OPERATOR, maintenance.DECLARE) as unit:
        window = maintenance.declare(
            unit,
            ready.node_id,
            reason="new cables",
            starts_at=unit.now + timedelta(minutes=20),
            until=unit.now + timedelta(hours=2),
        ).id
    assert once(ready) == 0, "a reset may take 25 min, and the window begins in 20"
    with ready.units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, window, reason="put off")
    with ready.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        overrides.override(unit, GPU, Standing.QUARANTINED, until=until, reason="kept as it is")
    assert once(ready) == 0
    with ready.units.begin(OPERATOR, overrides.RELEASE) as unit:
        overrides.release(unit, GPU, reason="seen")
    assert once(ready) == 1


def test_a_burn_in_that_may_prove_it_is_waited_for(ready: Court) -> None:
    with ready.units.begin(OPERATOR, orders.ORDER) as unit:
        orders.order(unit, GPU, reason="is it well?")
    assert once(ready) == 0


def test_a_silent_host_gets_no_order_that_it_would_let_pass(ready: Court) -> None:
    with ready.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        unit.session.execute(update(Node).values(contact="SILENT"))
    assert once(ready) == 0
    assert due_incidents(ready) == []


def test_an_open_breaker_holds_every_rule_back(ready: Court) -> None:
    with ready.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        row = unit.session.get_one(Breaker, "quarantine")
        row.state = {**row.state, "open_since_ms": {"fleet": ready.now_ms}}
    assert once(ready) == 0
    with ready.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        row = unit.session.get_one(Breaker, "quarantine")
        row.state = {**row.state, "open_since_ms": {}}
    assert once(ready) == 1


def test_a_reboot_counts_the_whole_host_and_waits_for_a_place_under_the_caps(court: Court) -> None:
    """It opens no scope: that other GPUs are out is no reason to stop the rules."""
    ask(court, *ALL)
    far = enrol_host(court.units, "far", num_gpus=2)
    broken(court, 79)
    court.signal("far", GpuUuid("GPU-far-0"), code=95, node_id=far)
    settle(court)
    allow(court, "reboot", breaker={"fleet_floor": 8, "fleet_window_floor": 8})
    assert once(court) == 0
    assert (repairs(court), account(court).open_since_ms) == ([], {})
    allow(court, "reboot", breaker={"fleet_floor": 9, "fleet_window_floor": 9})
    assert once(court) == 1
    out = {each.gpu_uuid: each.ways for each in account(court).quarantined}
    assert len(out) == 9
    assert (out[GPU], out[OTHER]) == (("node_repair", "standing"), ("node_repair",))


def account(court: Court) -> BreakerState:
    (row,) = court.rows(Breaker)
    return msgspec.convert(row.state, BreakerState)


def test_what_only_a_person_can_do_is_one_incident_until_it_is_done(ready: Court) -> None:
    allow(ready, "reboot")
    assert once(ready) == 0
    assert once(ready) == 0
    (found,) = due_incidents(ready)
    assert (found.subject_id, found.payload["remedy"], found.payload["node_id"]) == (GPU, "reset", ready.node_id)
    assert "no rule may start it" in found.summary
    with ready.units.begin(OPERATOR, interventions.START_REPAIR) as unit:
        interventions.start_repair(unit, GPU, action=None, reason="as is due", by=RepairBy.AGENT)
    assert newest(ready.units).action is RepairAction.RESET
    assert once(ready) == 0
    assert due_incidents(ready) == []
    (closed,) = (each for each in ready.rows(Incident) if each.id == found.id)
    assert closed.close_reason == "it is REPAIR"


def test_what_a_host_does_not_allow_is_a_persons_and_closes_once_rules_are_off(ready: Court) -> None:
    ask(ready, "reboot")
    assert once(ready) == 0
    (found,) = due_incidents(ready)
    assert "its host does not allow its agent gpu_reset" in found.summary
    allow(ready)
    assert once(ready) == 0
    assert due_incidents(ready) == []


def test_an_unknown_code_never_has_anything_but_a_diagnosis(court: Court) -> None:
    ask(court, *ALL)
    allow(court, *ALL)
    broken(court, 9999)
    assert court.standing() is not Standing.QUARANTINED
    assert once(court) == 0
    with court.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        overrides.override(unit, GPU, Standing.QUARANTINED, until=until, reason="it whistles")
    assert once(court) == 0, "a person's own quarantine is a person's"
    assert repairs(court) == []


def test_the_remedy_that_is_due_counts_for_its_own_fault_group(ready: Court) -> None:
    with ready.units.begin(OPERATOR, interventions.START_REPAIR) as unit:
        interventions.start_repair(unit, GPU, action=None, reason="as is due")
    row = newest(ready.units)
    assert (row.action, row.fault_group, row.verb) == (RepairAction.RESET, "memory", None)
    with ready.units.read() as session:
        assert session.scalar(select(func.count()).select_from(Repair)) == 1
