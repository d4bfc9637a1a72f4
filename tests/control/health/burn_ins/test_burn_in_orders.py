"""From the order to the report: each GPU is given once, to its own host, and never while a job holds it."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.health import interventions
from control.health.burn_ins import hosts, orders
from control.health.burn_ins.hosts import expire_once
from muster.db.models import AuditEntry, BreakerProposal, Event
from muster.domain.errors import ConflictError, ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInState, JobState, Standing
from muster.wire.burn_in import BURN_IN_PROTOCOL, BurnInPoll
from tests.control.burn_in_case import (
    KEEPER,
    WRONG_SUM,
    Host,
    enrol,
    figures,
    judge,
    judge_time,
    newest,
    order,
    order_intake,
    standing,
    store,
)
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, make_fleet
from tests.stored_signals import add_signal


def kinds(units: UnitOfWorkFactory, subject: str) -> list[str]:
    with units.read() as session:
        return list(session.scalars(select(Event.kind).where(Event.subject_id == subject).order_by(Event.at, Event.id)))


def test_a_report_has_effect_once_and_only_of_the_last_try(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    order_intake(units)
    (lost,) = host.ask().orders
    (given_again,) = host.ask().orders
    assert (lost.try_number, given_again.try_number) == (1, 2)
    assert not host.report(lost, figures(partial_sums=WRONG_SUM)), "that try was given up"
    assert host.report(given_again, figures())
    assert not host.report(given_again, figures(partial_sums=WRONG_SUM))
    judge(units)
    assert not host.report(given_again, figures(partial_sums=WRONG_SUM))
    assert standing(units, host.gpus[0]) is Standing.PROBATION


def test_a_host_reports_only_what_is_its_own(units: UnitOfWorkFactory) -> None:
    host, other = enrol(units, "alpha"), enrol(units, "beta")
    order_intake(units)
    (given,) = host.ask().orders
    other.ask()
    with pytest.raises(NotFoundError):
        other.report(given, figures(partial_sums=WRONG_SUM))
    assert {one.gpu_uuid for one in other.ask().orders} == set(other.gpus)


def test_a_simulated_run_proves_no_real_gpu(units: UnitOfWorkFactory) -> None:
    host = enrol(units, is_simulated=False)
    order_intake(units)
    (given,) = host.ask().orders
    with pytest.raises(ValidationFailedError) as caught:
        host.report(given, figures())
    assert caught.value.faults[0].pointer == "/figures/is_simulated"
    assert host.report(given, figures(is_simulated=False))


def test_an_agent_that_died_is_given_its_order_again_and_not_for_ever(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    policy = store(units, burn_in={"tries_max": 2})
    host = enrol(units)
    order_intake(units)
    for try_number in (1, 2):
        assert [one.try_number for one in host.ask().orders] == [try_number]
        clock.advance(policy.health.burn_in.deadline_s)
        assert expire_once(units, KEEPER) == 0, "its report may still come"
        clock.advance(61)
        assert expire_once(units, KEEPER) == 1
    row = newest(units, host.gpus[0])
    assert (row.state, row.last_fault) == (BurnInState.ABANDONED, "its agent did not report in time")
    assert order_intake(units) == 0
    clock.advance(policy.health.burn_in.again_s + 1)
    assert order_intake(units) == 1
    assert standing(units, host.gpus[0]) is Standing.UNPROVEN


def test_a_burn_in_that_could_not_run_states_why_and_proves_nothing(units: UnitOfWorkFactory) -> None:
    store(units, burn_in={"tries_max": 1})
    host = enrol(units)
    order_intake(units)
    host.burn_in("torch cannot be imported")
    row = newest(units, host.gpus[0])
    assert (row.state, row.last_fault) == (BurnInState.ABANDONED, "torch cannot be imported")
    assert standing(units, host.gpus[0]) is Standing.UNPROVEN
    assert "gpu.burn_in_abandoned" in kinds(units, host.gpus[0])


def test_a_gpu_that_a_job_holds_is_not_burnt_and_one_that_is_burnt_is_not_given_to_a_job(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    fleet_ = make_fleet(units)
    fleet_.beat()
    job_id = fleet_.submit(shape={"nodes": 1, "gpus_per_node": 1})
    fleet_.cycle()
    taken = fleet_.attempts(job_id)[0].hosts[0].gpus[0]
    (free,) = {uuid for uuid in ("GPU-alpha-0", "GPU-alpha-1") if uuid != taken}
    order(units, taken)
    order(units, free)  # type: ignore[arg-type]  # plain text
    host = enrol(units, "beta")
    host.node_id = fleet_.node_id
    given = host.ask().orders
    assert [one.gpu_uuid for one in given] == [free]
    waiting = fleet_.submit(shape={"nodes": 1, "gpus_per_node": 1})
    fleet_.cycle()
    assert not fleet_.attempts(waiting)
    assert "in burn-in" in fleet_.job(waiting).state_reason
    assert host.report(given[0], figures())
    fleet_.cycle()
    assert fleet_.attempts(waiting)


def test_what_a_person_answers_for_is_left_to_its_jobs(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = enrol(units)
    with units.begin(OPERATOR, inventory.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        inventory.override_standing(unit, host.gpus, Standing.HEALTHY, until=until, reason="a benchmark")
    assert order_intake(units) == 0
    clock.advance(3601)
    assert order_intake(units) == 1


def test_an_operators_order_is_audited_and_one_at_a_time(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    made = order(units, host.gpus[0], "weekly")
    assert order_intake(units) == 0
    with pytest.raises(ConflictError) as caught:
        order(units, host.gpus[0])
    assert caught.value.extra["burn_in_id"] == made.id
    with pytest.raises(NotFoundError):
        order(units, "GPU-nowhere")  # type: ignore[arg-type]  # plain text
    with units.read() as session:
        entry = session.scalars(select(AuditEntry).where(AuditEntry.action == "burn_in.order")).one()
    assert (entry.reason, entry.detail["burn_in_id"]) == ("weekly", made.id)


def test_only_a_node_requests_and_only_the_system_judges(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    order_intake(units)
    (given,) = host.ask().orders
    host.report(given, figures())
    from control.health.burn_ins.verdicts import judge_burn_ins_once  # noqa: PLC0415  # beside its use

    with pytest.raises(ForbiddenError):
        judge_burn_ins_once(units, host.principal)
    assert standing(units, host.gpus[0]) is Standing.UNPROVEN


def test_real_gpus_are_given_as_few_at_a_time_as_their_agent_takes(units: UnitOfWorkFactory) -> None:
    host = enrol(units, num_gpus=3)
    order_intake(units)
    given = host.ask(max_orders=1).orders
    assert len(given) == 1
    host.report(given[0], figures())
    following = host.ask(max_orders=1).orders
    assert len(following) == 1
    assert following[0].gpu_uuid != given[0].gpu_uuid


def test_the_fleet_as_a_whole_requests_no_more_often_than_the_policy_states(units: UnitOfWorkFactory) -> None:
    store(units, burn_in={"polls_per_s": 0.5})
    host = enrol(units, "alpha")
    assert host.ask().poll_again_s == pytest.approx(2.0)
    for number in range(9):
        enrol(units, f"other-{number}")
    assert host.ask().poll_again_s == pytest.approx(20.0)


def test_a_placement_that_meets_a_burn_in_waits_for_it_and_sees_it(units: UnitOfWorkFactory) -> None:
    fleet_ = make_fleet(units)
    fleet_.beat()
    host = Host(units, fleet_.node_id, (GpuUuid("GPU-alpha-0"), GpuUuid("GPU-alpha-1")))
    for gpu in host.gpus:
        order(units, gpu)
    job_id = fleet_.submit(shape={"nodes": 1, "gpus_per_node": 2})
    request = BurnInPoll(protocol=BURN_IN_PROTOCOL, boot_id="boot-1")
    with ThreadPoolExecutor(1) as pool:
        with units.begin(host.principal, hosts.POLL) as unit:
            assert len(hosts.poll(unit, request).orders) == 2
            placing = pool.submit(fleet_.cycle)
            with pytest.raises(TimeoutError):
                placing.result(timeout=1.0)
        placing.result(timeout=100)
    assert not fleet_.attempts(job_id)
    assert fleet_.job(job_id).state is JobState.QUEUED


SM = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Out Of Range Address"


def fault(units: UnitOfWorkFactory, gpu: GpuUuid, clock: SetClock, code: int = 39) -> None:
    """An XID, an hour after what was before, judged."""
    clock.advance(3600)
    with units.begin(OPERATOR, orders.ORDER, quiet=True) as unit:
        add_signal(unit, gpu, code=code, source="kernel_log", text=SM)
    judge_time(units)


def proved(units: UnitOfWorkFactory) -> Host:
    host = enrol(units)
    order_intake(units)
    host.burn_in(figures())
    judge(units)
    return host


@pytest.mark.parametrize("code", [13, 31, 39])
def test_a_repetition_that_wants_a_diagnosis_orders_one_burn_in(
    units: UnitOfWorkFactory, clock: SetClock, code: int
) -> None:
    host = proved(units)
    gpu, intake = host.gpus[0], newest(units, host.gpus[0])
    fault(units, gpu, clock, code)
    assert newest(units, gpu).id == intake.id, "once is no repetition"
    fault(units, gpu, clock, code)
    ordered = newest(units, gpu)
    assert (ordered.state, ordered.reason.startswith("diagnosis: ")) == (BurnInState.ORDERED, True)
    assert standing(units, gpu) is Standing.PROBATION, "it keeps its standing"
    fault(units, gpu, clock, code)
    host.burn_in(figures())
    judge(units)
    fault(units, gpu, clock, code)
    assert newest(units, gpu).id == ordered.id, "the finding continues, and was answered"


def test_a_diagnosis_that_fails_quarantines(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = proved(units)
    for _ in range(2):
        fault(units, host.gpus[0], clock)
    host.burn_in(figures(partial_sums=WRONG_SUM))
    judge(units)
    judge_time(units)
    assert standing(units, host.gpus[0]) is Standing.QUARANTINED


def test_a_proposed_diagnosis_ends_when_another_burn_in_has_answered(units: UnitOfWorkFactory, clock: SetClock) -> None:
    store(units, breaker=dict.fromkeys(("fleet_window_floor", "fleet_floor", "rack_floor", "cohort_floor"), 1))
    pair = [enrol(units, name) for name in ("alpha", "beta")]
    order_intake(units)
    for host in pair:
        host.burn_in(figures())
    judge(units)
    (first,), (second,) = (host.gpus for host in pair)
    for gpu in (first, second) * 2:
        fault(units, gpu, clock)
    assert proposed(units) == [second], "the first GPU alone is under the cap"
    clock.advance(60)
    order(units, second)
    pair[1].burn_in(figures())
    judge(units)
    clock.advance(3600)
    judge_time(units)
    assert proposed(units) == []


def proposed(units: UnitOfWorkFactory) -> list[str]:
    with units.read() as session:
        return list(session.scalars(select(BreakerProposal.subject_id)))


def test_a_policy_may_ask_for_no_diagnosis(units: UnitOfWorkFactory, clock: SetClock) -> None:
    store(units, burn_in={"requested_by": []})
    host = proved(units)
    intake = newest(units, host.gpus[0])
    for _ in range(2):
        fault(units, host.gpus[0], clock)
    assert newest(units, host.gpus[0]).id == intake.id


def test_an_order_of_a_gpu_that_was_retired_is_abandoned(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    order_intake(units)
    with units.begin(OPERATOR, interventions.RETIRE) as unit:
        interventions.retire(unit, host.gpus[0], reason="sold")
    assert host.ask().orders == ()
    assert expire_once(units, KEEPER) == 1
    row = newest(units, host.gpus[0])
    assert (row.state, row.last_fault) == (BurnInState.ABANDONED, "the GPU is RETIRED")
