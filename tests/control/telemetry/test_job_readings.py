"""The readings of a job's GPUs: within its own time alone, a bounded number, next to its steps."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, update

from control.jobs import jobs
from control.jobs.gpu_readings import GPUS_READ, MOST_SPAN, POINTS, AttemptReadings, readings_of_attempt
from control.jobs.rank_views import GpuNow, RankTimes, gpus_now, rank_times_of
from control.telemetry.latest import READ
from muster.db.models import Attempt, TrainingRank, TrainingStep
from muster.domain.errors import NotFoundError
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId
from muster.domain.principals import Principal, Role
from tests.control.telemetry.conftest import Stored
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.telemetry_reports import reading, report


class Case:
    """A job on two GPUs, which begins to run now."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.fleet: Fleet = make_fleet(stored.units, stored.node_id)
        self.fleet.beat()
        self.job_id: JobId = self.fleet.submit(shape={"gpus_per_node": 2})
        self.fleet.cycle()
        self.attempt_id: AttemptId = self.fleet.attempts(self.job_id)[-1].attempt.id
        self.began_ms = stored.now_ms
        with stored.units.begin(OPERATOR, READ, quiet=True) as unit:
            unit.session.execute(update(Attempt).values(running_at=unit.now))

    def report(self, at_s: float, power_w: float, *, seq: int = 1) -> None:
        gpus = [reading(f"GPU-alpha-{n}", power_w=power_w + n, sm_clock_mhz=1980.0) for n in range(2)]
        self.stored.take(report(16 * seq, self.began_ms + round(at_s * 1000), *gpus))

    def step(self, number: int, at: datetime, step_s: float = 0.5) -> None:
        with self.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
            ids: dict[str, Any] = {
                "attempt_id": self.attempt_id,
                "job_id": self.job_id,
                "tenant_id": self.fleet.tenant_id,
            }
            unit.session.add(TrainingStep(**ids, step=number, step_s=step_s, at=at))

    def now(self, reader: Principal | None = None) -> list[GpuNow]:
        with self.stored.units.begin(reader or self.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
            return list(gpus_now(unit, self.job_id))

    def over_time(self) -> AttemptReadings:
        with self.stored.units.begin(self.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
            found = readings_of_attempt(unit, self.job_id)
        assert found is not None
        return found


@pytest.fixture
def case(stored: Stored) -> Case:
    return Case(stored)


def test_readings_from_before_the_attempt_are_left_out_and_after_its_end_there_are_none(case: Case) -> None:
    case.report(-5, 700.0)
    assert case.now() == [], "the GPUs may have been another tenant's"
    case.stored.clock.advance(10)
    case.report(5, 300.0, seq=2)
    first, second = case.now()
    assert (first.number, first.is_rank, first.node_name, first.local_index) == (0, True, "alpha", 0)
    assert (first.values["power_w"], second.values["power_w"], second.number) == (300.0, 301.0, 1)
    assert "temperature_c" not in first.values, "it was not read"
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(state="STOPPING"))
        unit.session.execute(update(Attempt).values(state="ENDED", cause="succeeded", ended_at=unit.now))
    case.report(8, 600.0, seq=3)
    assert case.now() == []


def test_a_reading_from_before_the_attempt_is_left_out_also_where_the_hosts_clock_is_ahead(case: Case) -> None:
    case.report(8, 700.0)
    assert len(case.now()) == 2
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(running_at=unit.now + timedelta(seconds=5)))
    assert case.now() == []


def test_the_history_is_of_the_attempts_own_time_and_next_to_its_steps(case: Case) -> None:
    for number, at_s in enumerate((-20, -1, 0, 10, 20)):
        case.report(at_s, 100.0 * number, seq=number + 1)
    start = case.stored.clock.now
    for number in range(3):
        case.step(number + 1, start + timedelta(seconds=10 * number))
    case.stored.clock.advance(30)
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(state="STOPPING"))
        ended = start + timedelta(seconds=15)
        unit.session.execute(update(Attempt).values(state="ENDED", cause="succeeded", ended_at=ended))
    found = case.over_time()
    assert (found.number, found.num_gpus, found.since, found.until) == (1, 2, start, ended)
    assert [line.local_index for line in found.gpus] == [0, 1]
    power = [value for value in found.gpus[0].values["power_w"] if value is not None]
    assert power == [200.0, 300.0], "neither before it ran nor after its end"
    assert [row.step for row in found.steps] == [1, 2, 3]
    assert len(found.gpus[0].values["power_w"]) >= 15


def test_of_a_long_attempt_the_newest_part_is_read(case: Case) -> None:
    start = case.stored.clock.now
    for number in range(1, 101):
        case.step(number, start + timedelta(minutes=number * 30))
    case.stored.clock.advance(50 * 3_600)
    found = case.over_time()
    assert found.until - found.since == MOST_SPAN
    assert found.step_s == MOST_SPAN.total_seconds() / POINTS
    assert [row.step for row in found.steps] == list(range(88, 101))
    assert timedelta(hours=48) == GPUS_READ * MOST_SPAN


def test_a_job_that_has_not_run_has_none_and_another_tenants_is_not_there(case: Case) -> None:
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        unit.session.execute(update(Attempt).values(running_at=None))
    assert case.now() == []
    with case.stored.units.begin(case.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
        assert readings_of_attempt(unit, case.job_id) is None
    stranger = Principal("usr_other", Role.TENANT_MEMBER, tenant_id=TenantId("ten_other"))
    with pytest.raises(NotFoundError):
        case.now(stranger)


def test_figures_of_ranks_are_read_by_one_statement_without_their_histories(case: Case) -> None:
    parts = {"data_s": 0.125, "forward_s": 0.25, "backward_s": 0.25, "optimizer_s": 0.125}
    paces: list[dict[str, Any] | None] = [
        {**parts, "collective_s": 0.5, "mfu": 0.4},
        {**parts, "collective_s": None},
        {"forward_s": 0.2, "own_s": 0.6, "wait_s": 0.25, "place": "data ranks of 0", "collective_s": 0.1},
        None,
    ]
    with case.stored.units.begin(OPERATOR, READ, quiet=True) as unit:
        for rank, pace in enumerate(paces):
            row: dict[str, Any] = {"attempt_id": case.attempt_id, "tenant_id": case.fleet.tenant_id, "node_id": "n"}
            unit.session.add(TrainingRank(**row, rank=rank, pace=pace, step_s=1.0, updated_at=unit.now))
    said: list[str] = []
    with case.stored.units.begin(case.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
        event.listen(unit.session.connection(), "before_cursor_execute", lambda *given: said.append(given[2]))
        found = list(rank_times_of(unit, case.job_id))
    of_ranks = [each for each in said if "training_ranks" in each]
    assert len(of_ranks) == 1
    assert "history" not in of_ranks[0]
    node = NodeId("n")
    assert found == [
        RankTimes(0, node, 1.0, 0.75, 0.5, 0.5, 0.4, None),
        RankTimes(1, node, 1.0, 0.75, None, None, None, None),
        RankTimes(2, node, 1.0, 0.6, 0.25, 0.1, None, "data ranks of 0"),
        RankTimes(3, node, 1.0, None, None, None, None, None),
    ]
