"""Repairs by a host's agent: ordered, given once, ended by its report, and nothing else on the host is disturbed."""

from datetime import timedelta
from typing import Any, Literal

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import cordons, overrides
from control.fleet.cordons import those_that_stand
from control.health import repair_orders
from control.health.interventions import END_REPAIR, START_REPAIR, fail_repair, start_repair
from muster.db.models import AuditEntry, Cordon, Event, Gpu, Repair
from muster.domain.errors import ConflictError, NotFoundError, ValidationFailedError
from muster.domain.evidence.repairs import RepairAction, RepairBy, RepairOutcome, RepairVerb
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing
from muster.wire.repair import REPAIR_PROTOCOL, RepairAnswer, RepairOrder, RepairPoll, RepairReport
from tests.control.burn_in_case import Host, enrol, judge_time, order, order_intake, standing
from tests.control.conftest import SetClock
from tests.control.health.conftest import GPU, OTHER, Court, sample
from tests.fleet_factory import OPERATOR


def ordered(host: Host, action: RepairAction, gpu: GpuUuid | None = None) -> None:
    """A GPU that a person has taken out, and whose repair is ordered from its agent."""
    uuid = gpu or host.gpus[0]
    with host.units.begin(OPERATOR, overrides.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        overrides.override(unit, uuid, Standing.QUARANTINED, until=until, reason="it whistles")
    with host.units.begin(OPERATOR, START_REPAIR) as unit:
        start_repair(unit, uuid, action=action, reason="the driver reports it", by=RepairBy.AGENT)


def ask(host: Host, boot_id: str = "boot-1", waiting: tuple[str, ...] = ()) -> RepairOrder | None:
    asked = RepairPoll(protocol=REPAIR_PROTOCOL, boot_id=boot_id, waiting=waiting)
    with host.units.begin(host.principal, repair_orders.POLL) as unit:
        return repair_orders.poll(unit, asked).order


def report(
    host: Host,
    given: RepairOrder,
    outcome: Literal["done", "failed"] = "done",
    boot_id: str = "boot-1",
    **more: Any,
) -> RepairAnswer:
    said = RepairReport(
        protocol=REPAIR_PROTOCOL, boot_id=boot_id, outcome=outcome, text="as sent", **{"is_simulated": True, **more}
    )
    with host.units.begin(host.principal, repair_orders.REPORT) as unit:
        return repair_orders.report(unit, given.repair_id, said)


def given_to(host: Host, boot_id: str = "boot-1") -> RepairOrder:
    found = ask(host, boot_id)
    assert found is not None
    return found


def newest(units: UnitOfWorkFactory) -> Repair:
    with units.read() as session:
        return session.scalars(select(Repair).order_by(Repair.began_at.desc(), Repair.id.desc())).all()[0]


def count(units: UnitOfWorkFactory, kind: str) -> int:
    with units.read() as session:
        return len(session.scalars(select(Event.id).where(Event.kind == kind)).all())


def is_kept_free(host: Host) -> bool:
    with host.units.read() as session:
        query = select(Cordon.id).where(Cordon.node_id == host.node_id, those_that_stand(host.units.clock()))
        return session.scalar(query) is not None


def test_a_repair_is_given_once_and_its_report_makes_the_gpu_unproven(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    ordered(host, RepairAction.RESET)
    assert newest(units).taken_at is None
    given = given_to(host)
    assert (given.verb, given.gpu_uuid, given.deadline_s) == (RepairVerb.GPU_RESET, host.gpus[0], 1500)
    assert report(host, given).is_taken
    assert standing(units, host.gpus[0]) is Standing.UNPROVEN
    assert not report(host, given, "failed").is_taken, "a repeated report has no effect"
    assert standing(units, host.gpus[0]) is Standing.UNPROVEN
    ended = newest(units)
    assert (ended.outcome, ended.text, ended.taken_boot_id) == (RepairOutcome.DONE, "as sent", "boot-1")
    assert count(units, "gpu.repair_claimed") == 1
    with units.read() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "gpu.repair.finish"))
    assert entry.detail["verb"] == "gpu_reset"
    assert order_intake(units) == 1, "its burn-in follows"


def test_a_diagnosis_has_an_hour_and_is_begun_while_half_of_it_is_left(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    host = enrol(units, num_gpus=2)
    ordered(host, RepairAction.FIELD_DIAGNOSIS)
    clock.advance(29 * 60)
    given = given_to(host)
    assert given.deadline_s == 31 * 60
    clock.advance(30 * 60)
    judge_time(units)
    assert standing(units, host.gpus[0]) is Standing.REPAIR
    assert report(host, given).is_taken
    ordered(host, RepairAction.FIELD_DIAGNOSIS, host.gpus[1])
    clock.advance(31 * 60)
    assert ask(host) is None
    assert "1740 s before its time was over: too late to begin" in (newest(units).text or "")


def test_a_failed_verb_leaves_the_gpu_quarantined_with_its_words(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    ordered(host, RepairAction.FIELD_DIAGNOSIS)
    assert report(host, given_to(host), "failed").is_taken
    assert standing(units, host.gpus[0]) is Standing.QUARANTINED
    assert (newest(units).outcome, newest(units).text) == (RepairOutcome.FAILED, "as sent")


def test_an_agent_that_requests_again_without_a_report_has_failed_and_its_late_word_has_no_effect(
    units: UnitOfWorkFactory,
) -> None:
    host = enrol(units)
    ordered(host, RepairAction.RESET)
    lost = given_to(host)
    assert ask(host) is None
    assert (newest(units).outcome, newest(units).text) == (RepairOutcome.FAILED, repair_orders.LOST)
    assert not report(host, lost).is_taken
    assert standing(units, host.gpus[0]) is Standing.QUARANTINED


@pytest.fixture
def waiting(court: Court) -> tuple[Host, RepairOrder]:
    """A host of two quarantined GPUs: the first one's reset is done, and its samples report the fault still."""
    host = Host(court.units, court.node_id, (GPU, OTHER))
    court.receive(sample(), sample(OTHER))
    court.receive(sample(is_lost=True), sample(OTHER))
    court.judge()
    with host.units.begin(OPERATOR, START_REPAIR) as unit:
        start_repair(unit, GPU, action=RepairAction.RESET, reason="the driver reports it", by=RepairBy.AGENT)
    given = given_to(host)
    answer = report(host, given)
    assert (answer.is_taken, answer.again_s) == (False, repair_orders.AGAIN_S)
    ordered(host, RepairAction.RESET, OTHER)
    return host, given


def test_a_repair_that_waits_for_its_fault_to_end_holds_up_no_other_gpus(
    court: Court, waiting: tuple[Host, RepairOrder]
) -> None:
    host, first = waiting
    second = ask(host, waiting=(first.repair_id,))
    assert second is not None
    assert second.gpu_uuid == OTHER
    assert report(host, second).is_taken
    assert (court.standing(), court.standing(OTHER)) == (Standing.REPAIR, Standing.UNPROVEN)
    court.receive(sample(), sample(OTHER))
    court.judge()
    assert report(host, first).is_taken
    assert court.standing() is Standing.UNPROVEN


def test_an_agent_that_holds_a_waiting_repair_no_more_has_lost_it(
    court: Court, waiting: tuple[Host, RepairOrder]
) -> None:
    host, _first = waiting
    assert given_to(host).gpu_uuid == OTHER
    assert court.standing() is Standing.QUARANTINED


def test_a_repair_that_was_never_reported_does_not_wait_by_its_agents_word(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    ordered(host, RepairAction.RESET)
    given = given_to(host)
    assert ask(host, waiting=(given.repair_id,)) is None
    assert newest(units).text == repair_orders.LOST


def test_a_repair_that_none_takes_or_reports_ends_by_its_timeout(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = enrol(units)
    ordered(host, RepairAction.REBOOT)
    given = given_to(host)
    clock.advance(1501)
    judge_time(units)
    assert newest(units).outcome is RepairOutcome.TIMED_OUT
    assert is_kept_free(host), "its agent may still be at it"
    assert not report(host, given, boot_id="boot-2").is_taken
    clock.advance(901)
    assert not is_kept_free(host)


def test_an_order_that_is_requested_too_late_is_not_begun(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = enrol(units)
    ordered(host, RepairAction.RESET)
    clock.advance(1300)
    assert ask(host) is None
    assert newest(units).outcome is RepairOutcome.FAILED
    assert str(newest(units).text).startswith("its agent asked for it 200 s before its time was over")


def test_a_host_that_another_let_work_into_is_not_rebooted(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    ordered(host, RepairAction.REBOOT)
    with units.begin(OPERATOR, cordons.RELEASE) as unit:
        cordons.release(unit, newest(units).cordon_id or "", reason="we need it")
    assert ask(host) is None
    assert str(newest(units).text).startswith("the cordon that keeps work off its host was released")


def test_a_reboot_keeps_the_node_free_and_is_done_in_another_boot_only(units: UnitOfWorkFactory) -> None:
    host = enrol(units, is_simulated=False)
    ordered(host, RepairAction.REBOOT)
    assert is_kept_free(host)
    given = given_to(host)
    with pytest.raises(ValidationFailedError) as caught:
        report(host, given, is_simulated=False)
    assert caught.value.faults[0].pointer == "/boot_id"
    assert report(host, given, boot_id="boot-2", is_simulated=False).is_taken
    assert not is_kept_free(host)


def test_a_person_may_end_what_an_agent_has_taken(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    ordered(host, RepairAction.DRIVER_RELOAD)
    given = given_to(host)
    with units.begin(OPERATOR, END_REPAIR) as unit:
        fail_repair(unit, host.gpus[0], reason="the agent hangs")
    assert is_kept_free(host), "for a while: the verb may still run"
    assert not report(host, given).is_taken


def test_a_host_reports_only_its_own_and_only_of_its_own_kind(units: UnitOfWorkFactory) -> None:
    host, other = enrol(units, "alpha"), enrol(units, "beta")
    ordered(host, RepairAction.RESET)
    given = given_to(host)
    assert ask(other) is None
    with pytest.raises(NotFoundError):
        report(other, given)
    with pytest.raises(ValidationFailedError) as caught:
        report(host, given, is_simulated=False)
    assert caught.value.faults[0].pointer == "/is_simulated"


def test_what_needs_hands_is_no_order_for_an_agent(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    with pytest.raises(ValidationFailedError) as caught:
        ordered(host, RepairAction.SWAP)
    assert caught.value.faults[0].detail == (
        "swap needs hands; an agent does: reset, driver_reload, reboot, field_diagnosis"
    )


def test_what_the_whole_host_feels_waits_for_burn_ins_and_for_other_repairs_there(units: UnitOfWorkFactory) -> None:
    host = enrol(units, num_gpus=3)
    order(units, host.gpus[1])
    host.ask()
    with pytest.raises(ConflictError, match="runs on GPU-alpha-1, and a reboot affects every GPU"):
        ordered(host, RepairAction.REBOOT)
    ordered(host, RepairAction.RESET, host.gpus[2])
    with pytest.raises(ConflictError):
        ordered(host, RepairAction.DRIVER_RELOAD)


def test_what_the_whole_host_feels_is_refused_while_a_job_holds_another_of_its_gpus(
    court: Court,
) -> None:
    units = court.units
    court.fleet.beat()
    job = court.fleet.submit(name="train", shape={"nodes": 1, "gpus_per_node": 1})
    court.fleet.cycle()
    used = court.fleet.attempts(job)[0].hosts[0].gpus[0]
    with units.read() as session:
        node_id = session.get_one(Gpu, used).node_id
        free = session.scalars(select(Gpu.uuid).where(Gpu.node_id == node_id, Gpu.uuid != used)).all()[0]
    host = Host(units, node_id, (free,))
    with pytest.raises(ConflictError, match=f"{job} holds {used}, and a reboot affects every GPU of its host"):
        ordered(host, RepairAction.REBOOT)
    ordered(host, RepairAction.RESET)
    assert given_to(host).verb == "gpu_reset", "a reset is felt by its own GPU alone"
