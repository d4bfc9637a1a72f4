"""From figures to the verdict: what is proved moves up, what computes wrong goes out."""

import pytest
from sqlalchemy import select, text

from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.fleet.inventory import gpu_views
from control.health import interventions
from control.policy.policies import active_policy
from health.standing.admission import Refusal, refusal_of
from muster.db.models import BurnIn, Event, EvidenceRow, GpuStandingChange
from muster.domain.errors import ConflictError
from muster.domain.evidence.repairs import RepairAction
from muster.domain.ids import GpuUuid
from muster.domain.policy.tiers import TierPolicy
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from muster.wire.burn_in import VendorTests
from tests.control.burn_in_case import (
    OTHER,
    WRONG_SUM,
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
from tests.fleet_factory import OPERATOR


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


def test_the_first_part_of_a_probation_is_for_reclaimable_tiers(units: UnitOfWorkFactory, clock: SetClock) -> None:
    store(units, standing={"probation_s": 100.0, "reclaimable_only_s": 10.0})
    host = enrol(units)
    clock.advance(1)
    order_intake(units)
    clock.advance(1)
    host.burn_in(figures())
    judge(units)
    kept = TierPolicy(priority=500, standings=("HEALTHY", "PROBATION"))

    def refused() -> tuple[Refusal | None, Refusal | None]:
        host.beat()
        with units.read() as session:
            (view,) = gpu_views(session, clock.now, active_policy(session).health, only=host.gpus)
        return refusal_of(view.facts, kept), refusal_of(view.facts, kept.model_copy(update={"notice_s": 60.0}))

    clock.advance(9)
    assert refused() == (Refusal.RECLAIMABLE_ONLY, None)
    clock.advance(2)
    assert refused() == (None, None)


def test_what_fails_in_the_vendors_tests_quarantines_and_what_passes_there_does_not(units: UnitOfWorkFactory) -> None:
    host = enrol(units, num_gpus=2)
    order_intake(units)
    said = "memory failed on GPU 1: row remap failure (DCGM 80)"
    for order_, failures in zip(host.ask().orders, ((), (said,)), strict=True):
        tests = VendorTests(tool="DCGM 4.2.3", level=3, num_passed=11, failures=failures)
        assert host.report(order_, figures(vendor_tests=tests))
    assert judge(units) == 2
    with units.read() as session:
        verdicts = {row.gpu_uuid: (row.outcome, tuple(row.reasons)) for row in session.scalars(select(BurnIn))}
    assert set(verdicts.values()) == {(BurnInOutcome.PASSED, ()), (BurnInOutcome.FAILED, (said,))}
    failed = next(GpuUuid(gpu) for gpu, (outcome, _) in verdicts.items() if outcome is BurnInOutcome.FAILED)
    judge_time(units)
    assert standing(units, failed) is Standing.QUARANTINED


def test_a_gpu_whose_host_was_silent_when_its_probation_ended_becomes_healthy_when_it_is_received(
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
    assert "bits differ from 3 of 4" in newest(units, odd.gpus[0]).reasons[0]


def test_the_first_of_its_kind_passes_and_is_found_once_a_majority_has_stated(
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


def test_one_that_cannot_be_judged_stops_no_other(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = enrol(units, num_gpus=2)
    order_intake(units)
    poisoned, sound = host.ask().orders
    host.report(poisoned, figures())
    clock.advance(1)
    host.report(sound, figures(model="another"))
    with units.begin(OPERATOR, inventory.OVERRIDE, quiet=True) as unit:
        unit.session.execute(text("SET LOCAL session_replication_role = replica"))
        unit.session.execute(
            text("UPDATE burn_ins SET figures = figures - 'bands' WHERE id = :id"), {"id": poisoned.burn_in_id}
        )
    judge(units)
    found = {gpu: standing(units, gpu) for gpu in host.gpus}
    assert sorted(found.values()) == [Standing.PROBATION, Standing.UNPROVEN]
    assert found[GpuUuid(sound.gpu_uuid)] is Standing.PROBATION


def test_after_a_repair_the_gpu_is_proved_again(units: UnitOfWorkFactory, clock: SetClock) -> None:
    host = enrol(units)
    gpu = host.gpus[0]
    order_intake(units)
    host.burn_in(figures(partial_sums=WRONG_SUM))
    judge(units)
    clock.advance(60)
    with units.begin(OPERATOR, interventions.START_REPAIR) as unit:
        interventions.start_repair(
            unit, gpu, action=RepairAction.RESET, fault_group="compute", reason="reset it", expected_version=None
        )
    with pytest.raises(ConflictError):
        order(units, gpu)
    assert order_intake(units) == 0
    clock.advance(60)
    with units.begin(OPERATOR, interventions.END_REPAIR) as unit:
        interventions.finish_repair(unit, gpu, reason="it is back")
    assert standing(units, gpu) is Standing.UNPROVEN
    assert order_intake(units) == 1
    clock.advance(1)
    host.burn_in(figures())
    judge(units)
    assert standing(units, gpu) is Standing.PROBATION
