"""A node's own history, out of the database, played again: by the same policy the same, by another another."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from control.core.unit_of_work import declare_action
from control.health import interventions
from control.health.rule_cordons import hold_nodes_once
from control.telemetry.compaction import compact_once
from health.replay.stream import Unmet
from muster.db.models import BurnIn, EvidenceRow, Gpu
from muster.domain.evidence.repairs import RepairAction
from muster.domain.gpu.metrics import INDEX
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.states import BurnInOutcome, BurnInState, Standing
from muster.domain.times import to_ms
from muster.wire.telemetry import EventReport, GpuReport
from tests.control.health.conftest import GPU, JUDGE, OTHER, Court, sample
from tests.control.health.export.conftest import Backtest, moves_of
from tests.control.health.test_taken_out import take_out
from tests.fleet_factory import OPERATOR

LOST, CALM = GpuUuid("GPU-many-2"), GpuUuid("GPU-many-3")
PROVE = declare_action("test.prove")


def reported(court: Court, name: str, uuid: GpuUuid | None = GPU, **more: object) -> EventReport:
    plain = {"event_id": name, "kind": "xid", "source": "kernel_log", "at_ms": court.now_ms + 10_000, "gpu_uuid": uuid}
    return EventReport(**{**plain, **more})  # type: ignore[arg-type]


def receive(court: Court, *gpus: GpuReport, times: int = 1, events: tuple[EventReport, ...] = ()) -> None:
    """Receive a report of all four GPUs, healthy except for these."""
    named = {each.uuid for each in gpus}
    rest = [sample(uuid) for uuid in (GPU, OTHER, LOST, CALM) if uuid not in named]
    for _ in range(times):
        court.receive(*gpus, *rest, events=events)
        court.judge()
        hold_nodes_once(court.units, JUDGE)
        events = ()


def fault_and_dismissal(court: Court) -> None:
    """One GPU with an error by two sources; one lost and back, whose loss a person dismisses; one that waits."""
    receive(court, times=2)
    receive(court, sample(ecc_uncorrected_volatile=2.0), events=(reported(court, "xid", code=95),))
    receive(court, sample(LOST, is_lost=True), sample(ecc_uncorrected_volatile=2.0), times=3)
    receive(court, sample(OTHER, remap_pending=1.0), sample(ecc_uncorrected_volatile=2.0), times=4)
    receive(court, sample(ecc_uncorrected_volatile=2.0), times=2)
    (loss,) = [row for row in court.rows(EvidenceRow) if row.detector == "gpu_lost"]
    with court.units.begin(OPERATOR, interventions.DISMISS) as unit:
        interventions.dismiss(unit, LOST, loss.id, reason="a cable was pulled")


def repair_and_proof(court: Court) -> None:
    with court.units.begin(OPERATOR, interventions.START_REPAIR) as unit:
        interventions.start_repair(unit, GPU, action=RepairAction.SWAP, reason="a new board")
    receive(court, times=2)
    with court.units.begin(OPERATOR, interventions.END_REPAIR) as unit:
        interventions.finish_repair(unit, GPU, reason="swapped")
    court.clock.advance(60)
    began = court.clock.now
    court.clock.advance(60)
    with court.units.begin(JUDGE, PROVE, quiet=True) as unit:
        unit.session.add(
            BurnIn(
                id="bi_01k0000000000000000000000a",
                gpu_uuid=GPU,
                node_id=court.node_id,
                state=BurnInState.JUDGED,
                reason="a repair",
                ordered_by="test",
                ordered_at=began,
                began_at=began,
                ended_at=unit.now,
                judged_at=unit.now,
                outcome=BurnInOutcome.PASSED,
                figures={},
                comparison_key="{}",
            )
        )
        unit.session.scalars(select(Gpu).where(Gpu.uuid == GPU)).one().judge_at = unit.now
    court.judge()
    hold_nodes_once(court.units, JUDGE)
    receive(court, times=3)


def whole_timeline(court: Court) -> None:
    fault_and_dismissal(court)
    disk = reported(court, "disk", None, kind="host_state", source="host", values={"disk_free_fraction": 0.005})
    receive(court, sample(ecc_uncorrected_volatile=2.0), events=(disk,))
    repair_and_proof(court)


def test_by_the_same_policy_a_replay_of_an_export_finds_and_moves_the_same(backtest: Backtest) -> None:
    court = backtest.court
    whole_timeline(court)
    backtest.export()
    world, said = backtest.replay()
    assert backtest.evidence_now(world) == backtest.evidence_then()
    assert moves_of(said) == backtest.moves_then()
    assert ("GPU-many-0", "UNPROVEN", "PROBATION", "burn_in_passed") in moves_of(said), "the timeline has its end"
    assert [each for each in said if isinstance(each, Unmet)] == []
    for uuid, case in world.gpus().items():
        assert case.standing is court.standing(uuid), uuid


def test_by_another_policy_it_moves_otherwise_and_states_what_no_more_goes(backtest: Backtest) -> None:
    whole_timeline(backtest.court)
    backtest.export()
    shadow = {name: {"mode": "shadow"} for name in ("ecc_uncorrected", "xid", "gpu_lost")}
    _, said = backtest.replay(HealthPolicy.model_validate({"detectors": shadow}))
    assert [move for move in moves_of(said) if move[0] in {GPU, LOST}] == []
    assert [move for move in backtest.moves_then() if move[0] in {GPU, LOST}] != []
    (repair, done) = (each.text for each in said if isinstance(each, Unmet))
    assert repair == f"{GPU} is HEALTHY: quarantine it before its repair"
    assert done == f"{GPU} is HEALTHY: it is not in REPAIR"


def test_what_was_before_its_beginning_is_reported_as_it_stood(backtest: Backtest) -> None:
    court = backtest.court
    fault_and_dismissal(court)
    backtest.begin = court.clock.now + timedelta(seconds=1)
    court.clock.advance(2)
    repair_and_proof(court)
    backtest.export()
    world, said = backtest.replay()
    assert moves_of(said) == backtest.moves_then()
    assert {case.standing for case in world.gpus().values()} == {Standing.PROBATION, Standing.SUSPECT, Standing.HEALTHY}
    assert backtest.evidence_now(world) == backtest.evidence_then()


def test_samples_are_exported_alike_before_and_after_they_are_compacted(backtest: Backtest) -> None:
    court = backtest.court
    receive(court, sample(power_w=312.5), times=3)
    before = [each for each in backtest.export() if each["type"] == "samples"]
    assert len(before) == 3
    assert [gpu["values"][INDEX["power_w"]] for gpu in before[0]["gpus"]] == [312.5, None, None, None]
    court.clock.advance(3 * 3600)
    compact_once(court.units)
    after = [each for each in backtest.export() if each["type"] == "samples"]
    assert after == before
    assert backtest.num_pages > 1


def test_an_export_states_first_what_it_is_of_and_what_it_lacks(backtest: Backtest) -> None:
    receive(backtest.court)
    head, fleet, *rest = backtest.export()
    assert (head["type"], head["node_name"], head["policy_version"]) == ("export", "many", 1)
    assert any("tenant" in each for each in head["notes"])
    assert (fleet["type"], fleet["num_gpus"]) == ("fleet", 10)
    gpus = [each for each in rest if each["type"] == "gpu"]
    assert [each["standing"] for each in gpus] == ["HEALTHY"] * 8
    assert gpus[0]["cohort"] in fleet["cohorts"]


def test_an_event_that_came_late_is_reported_when_it_came(backtest: Backtest) -> None:
    court = backtest.court
    late = reported(court, "late", code=13, at_ms=court.now_ms - 3_600_000)
    receive(court, events=(late,))
    kinds = [each["type"] for each in backtest.export()]
    assert [kind for kind in kinds if kind in {"samples", "time", "event"}] == ["samples", "time", "event"]


@pytest.mark.parametrize("share", [1, 100])
def test_the_breaker_rules_by_the_fleet_that_the_records_report_of(backtest: Backtest, share: int) -> None:
    """Not by the handful of GPUs in the file: of a fleet of 800, eight at once are within its caps."""
    court = backtest.court
    for number in range(8):
        uuid = GpuUuid(f"GPU-many-{number}")
        court.receive(sample(uuid), events=(reported(court, f"e{number}", uuid, code=95),))
    for record in backtest.export():
        if record["type"] == "fleet":
            record["num_gpus"] *= 10 * share
            record["cohorts"], record["racks"] = {}, {}
    _, said = backtest.replay(HealthPolicy.model_validate({"breaker": {"fleet_floor": 1, "fleet_window_floor": 1}}))
    assert len(moves_of(said)) == (8 if share == 100 else 5), "5 % of 100 within ten minutes"


def test_an_override_in_force_as_the_export_begins_is_reported(backtest: Backtest) -> None:
    court = backtest.court
    take_out(court, GPU, hours=2)
    take_out(court, OTHER, hours=0.5)
    court.clock.advance(3600)
    since = court.clock.now
    court.clock.advance(60)
    overrides = [each for each in backtest.export(since=since) if each["type"] == "override"]
    assert [(each["gpu_uuid"], each["standing"]) for each in overrides if each["standing"] == "QUARANTINED"] == [
        (GPU, "QUARANTINED")
    ], "the other's was over by then"
    assert {each["at_ms"] for each in overrides} == {to_ms(since)}
