"""From the order to the verdict: what is proved moves up, what computes wrong goes out, and nothing happens twice."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import select, text

from muster.db.models import AuditEntry, Event, EvidenceRow, GpuStandingChange
from muster.domain.errors import ConflictError, ForbiddenError, NotFoundError, ValidationFailedError
from muster.domain.ids import GpuUuid
from muster.domain.states import BurnInOutcome, BurnInState, JobState, Standing
from muster.services import fleet
from muster.services.burn_ins import hosts
from muster.services.burn_ins.hosts import expire_once
from muster.services.unit_of_work import UnitOfWorkFactory
from muster.wire.burn_in import BURN_IN_PROTOCOL, AskRequest
from tests.fleet_factory import OPERATOR, make_fleet
from tests.services.burn_in_case import (
    KEEPER,
    OTHER,
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
from tests.services.conftest import SetClock


def kinds(units: UnitOfWorkFactory, subject: str) -> list[str]:
    with units.read() as session:
        return list(session.scalars(select(Event.kind).where(Event.subject_id == subject).order_by(Event.at, Event.id)))


def test_an_enrolled_gpu_is_burnt_in_and_serves_its_probation_until_it_is_healthy(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    store(units, standing={"probation_s": 100.0, "reclaimable_only_s": 10.0})
    host = enrol(units, num_gpus=2)
    clock.advance(1)
    assert order_intake(units) == 2
    assert order_intake(units) == 0
    clock.advance(1)
    host.burn_in(figures())
    assert judge(units) == 2
    assert [standing(units, gpu) for gpu in host.gpus] == [Standing.PROBATION] * 2
    clock.advance(99)
    host.beat()
    judge_time(units)
    assert standing(units, host.gpus[0]) is Standing.PROBATION
    clock.advance(2)
    host.beat()
    judge_time(units)
    assert [standing(units, gpu) for gpu in host.gpus] == [Standing.HEALTHY] * 2
    assert order_intake(units) == 0


def test_a_gpu_whose_host_was_silent_when_its_probation_ended_becomes_healthy_when_it_is_heard(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    store(units, standing={"probation_s": 100.0, "reclaimable_only_s": 10.0})
    host = enrol(units)
    order_intake(units)
    host.burn_in(figures())
    judge(units)
    clock.advance(200)
    judge_time(units)
    assert standing(units, host.gpus[0]) is Standing.PROBATION
    host.beat()
    clock.advance(60)
    host.beat()
    judge_time(units)
    assert standing(units, host.gpus[0]) is Standing.HEALTHY


def test_verdict_move_and_events_are_one_transaction_and_name_each_other(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    host = enrol(units)
    gpu = host.gpus[0]
    clock.advance(1)
    order_intake(units)
    clock.advance(1)
    host.burn_in(figures())
    clock.advance(1)
    judge(units)
    with units.read() as session:
        move = session.scalars(select(GpuStandingChange).where(GpuStandingChange.target == Standing.PROBATION)).one()
    assert (move.origin, move.move_reason, move.actor) == (Standing.UNPROVEN, "burn_in_passed", "system:burn-in")
    row = newest(units, gpu)
    assert (row.state, row.outcome, row.judged_at) == (BurnInState.JUDGED, BurnInOutcome.PASSED, move.at)
    told = [kind for kind in kinds(units, gpu) if kind.startswith("gpu.")]
    assert sorted(told) == sorted(
        [
            "gpu.burn_in_ordered",
            "gpu.burn_in_began",
            "gpu.burn_in_measured",
            "gpu.burn_in_passed",
            "gpu.probation",
        ]
    )


@pytest.mark.parametrize(
    ("changes", "fault_key"),
    [
        ({"partial_sums": WRONG_SUM}, "burn_in:wrong_result"),
        ({"counter_deltas": {"ecc_uncorrected_volatile": 3.0}}, "burn_in:failed"),
    ],
)
def test_a_gpu_that_fails_is_quarantined_by_evidence_of_our_own(
    units: UnitOfWorkFactory, changes: dict[str, object], fault_key: str
) -> None:
    host = enrol(units)
    order_intake(units)
    host.burn_in(figures(**changes))
    judge(units)
    assert standing(units, host.gpus[0]) is Standing.QUARANTINED
    with units.read() as session:
        evidence = session.scalars(select(EvidenceRow)).one()
    assert (evidence.fault_key, evidence.trust, evidence.gpu_uuid) == (fault_key, "measured", host.gpus[0])
    assert evidence.threatens_correctness is (fault_key == "burn_in:wrong_result")
    assert newest(units, host.gpus[0]).reasons
    assert order_intake(units) == 0, "a failed one is not tried until it passes"


def test_a_quarantined_gpu_comes_back_by_a_burn_in_that_passed_after_its_evidence(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    host = enrol(units)
    order_intake(units)
    host.burn_in(figures(partial_sums=WRONG_SUM))
    judge(units)
    clock.advance(60)
    order(units, host.gpus[0], "after the board was swapped")
    host.burn_in(figures())
    judge(units)
    assert standing(units, host.gpus[0]) is Standing.PROBATION


def test_other_bits_than_the_majority_fail_though_every_exact_sum_is_right(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    right = enrol(units, "alpha", num_gpus=3)
    odd = enrol(units, "beta")
    order_intake(units)
    right.burn_in(figures())
    judge(units)
    clock.advance(1)
    odd.burn_in(figures(bands={"fp32 2^0": OTHER}))
    judge(units)
    assert standing(units, odd.gpus[0]) is Standing.QUARANTINED
    assert "other bits than 3 of 4" in newest(units, odd.gpus[0]).reasons[0]


def test_the_first_of_its_kind_passes_and_is_found_once_a_majority_has_spoken(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    odd = enrol(units, "alpha")
    order_intake(units)
    odd.burn_in(figures(bands={"fp32 2^0": OTHER}))
    judge(units)
    assert standing(units, odd.gpus[0]) is Standing.PROBATION
    assert newest(units, odd.gpus[0]).open_bands == ["fp32 2^0"]
    right = enrol(units, "beta", num_gpus=2)
    order_intake(units)
    clock.advance(1)
    right.burn_in(figures())
    for _ in range(3):
        judge(units)
    assert standing(units, odd.gpus[0]) is Standing.QUARANTINED
    assert [standing(units, gpu) for gpu in right.gpus] == [Standing.PROBATION] * 2
    assert newest(units, odd.gpus[0]).outcome is BurnInOutcome.FAILED
    assert judge(units) == 0, "nothing is open any more"


def test_where_a_majority_is_needed_the_first_hosts_wait_for_it_and_no_longer(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    store(units, burn_in={"needs_majority": True})
    host = enrol(units, num_gpus=3)
    order_intake(units)
    asked = host.ask().orders
    for one in asked[:2]:
        host.report(one, figures())
    judge(units)
    first = newest(units, asked[0].gpu_uuid)  # type: ignore[arg-type]  # the wire's plain text
    assert (first.outcome, standing(units, first.gpu_uuid)) == (BurnInOutcome.UNDECIDED, Standing.UNPROVEN)
    clock.advance(1)
    host.report(asked[2], figures())
    for _ in range(2):
        judge(units)
    assert [standing(units, gpu) for gpu in host.gpus] == [Standing.PROBATION] * 3


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


def test_a_burn_in_that_could_not_run_says_why_and_proves_nothing(units: UnitOfWorkFactory) -> None:
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
    with units.begin(OPERATOR, fleet.OVERRIDE) as unit:
        until = unit.now + timedelta(hours=1)
        fleet.override_standing(unit, host.gpus, Standing.HEALTHY, until=until, reason="a benchmark")
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


def test_only_a_node_asks_and_only_the_system_judges(units: UnitOfWorkFactory) -> None:
    host = enrol(units)
    order_intake(units)
    (given,) = host.ask().orders
    host.report(given, figures())
    from muster.services.burn_ins.verdicts import judge_burn_ins_once  # noqa: PLC0415  # beside its use

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


def test_the_fleet_as_a_whole_asks_no_more_often_than_the_policy_says(units: UnitOfWorkFactory) -> None:
    store(units, burn_in={"asks_per_s": 0.5})
    host = enrol(units, "alpha")
    assert host.ask().ask_again_s == pytest.approx(2.0)
    for number in range(9):
        enrol(units, f"other-{number}")
    assert host.ask().ask_again_s == pytest.approx(20.0)


def test_one_that_cannot_be_judged_stops_no_other(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = enrol(units, num_gpus=2)
    order_intake(units)
    poisoned, sound = host.ask().orders
    host.report(poisoned, figures())
    clock.advance(1)
    host.report(sound, figures(model="another"))
    with units.begin(OPERATOR, fleet.OVERRIDE, quiet=True) as unit:
        unit.session.execute(text("SET LOCAL session_replication_role = replica"))
        unit.session.execute(
            text("UPDATE burn_ins SET figures = figures - 'bands' WHERE id = :id"), {"id": poisoned.burn_in_id}
        )
    judge(units)
    found = {gpu: standing(units, gpu) for gpu in host.gpus}
    assert sorted(found.values()) == [Standing.PROBATION, Standing.UNPROVEN]
    assert found[GpuUuid(sound.gpu_uuid)] is Standing.PROBATION


def test_a_placement_that_meets_a_burn_in_waits_for_it_and_sees_it(units: UnitOfWorkFactory) -> None:
    fleet_ = make_fleet(units)
    fleet_.beat()
    host = Host(units, fleet_.node_id, (GpuUuid("GPU-alpha-0"), GpuUuid("GPU-alpha-1")))
    for gpu in host.gpus:
        order(units, gpu)
    job_id = fleet_.submit(shape={"nodes": 1, "gpus_per_node": 2})
    request = AskRequest(protocol=BURN_IN_PROTOCOL, boot_id="boot-1")
    with ThreadPoolExecutor(1) as pool:
        with units.begin(host.principal, hosts.ASK) as unit:
            assert len(hosts.ask(unit, request).orders) == 2
            placing = pool.submit(fleet_.cycle)
            with pytest.raises(TimeoutError):
                placing.result(timeout=1.0)
        placing.result(timeout=30)
    assert not fleet_.attempts(job_id)
    assert fleet_.job(job_id).state is JobState.QUEUED
