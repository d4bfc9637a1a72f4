"""Objectives: what their events are, when their budgets burn, and which events and incidents follow."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Final

import pytest
from sqlalchemy import select

from control.core.sequencer import sequence_once
from control.core.unit_of_work import UnitOfWorkFactory
from control.ledger.objectives import KEEP, keep_objectives_once
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import (
    Attempt,
    Checkpoint,
    Event,
    Incident,
    Job,
    ObjectiveCount,
    ObjectiveState,
    TrainingStep,
)
from muster.domain.ids import AttemptId, CheckpointId, Fence, JobId
from muster.domain.job.spec import NodeLossRule
from muster.domain.policy.document import Policy
from muster.domain.policy.objectives import Objective, ObjectivePolicy
from muster.domain.states import AttemptState, Cause, CheckpointStatus, JobState
from muster.identity import new_id
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, make_fleet

NOON: Final = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)


def only(indicator: str, target: float = 0.9, job_class: str = "production", **more: object) -> ObjectivePolicy:
    objective = {"job_class": job_class, "indicator": indicator, "target": target, **more}
    return ObjectivePolicy(targets={"it": Objective.model_validate(objective, strict=False)})


class World:
    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units = units
        self.clock = clock
        self.clock.now = NOON
        self.fleet: Fleet = make_fleet(units)
        self._fences = count(1_000)

    def judged_by(self, objectives: ObjectivePolicy) -> None:
        with self.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, Policy(objectives=objectives), reason="test")

    def keep(self, at: datetime) -> int:
        self.clock.now = at + timedelta(seconds=20)
        while sequence_once(self.units):
            pass
        return keep_objectives_once(self.units)

    def ended(self, at: datetime, state: JobState, cause: Cause | None = None, **spec: object) -> JobId:
        job_id = self.fleet.submit(**{"job_class": "production", **spec})
        if cause is not None:
            self.attempt(job_id, at - MINUTE, cause=cause, ended_at=at)
        with self.units.begin(OPERATOR, KEEP, quiet=True) as unit:
            job = unit.session.get_one(Job, job_id)
            job.state = JobState.ACTIVE
            unit.session.flush()
            job.state, job.finished_at = state, at
        return job_id

    def attempt(self, job_id: JobId, running_at: datetime | None, **columns: object) -> AttemptId:
        row = {"placed_at": running_at or self.clock.now, "training_began_at": running_at, **columns}
        attempt_id = AttemptId(new_id("attempt"))
        with self.units.begin(OPERATOR, KEEP, quiet=True) as unit:
            made = Attempt(
                id=attempt_id,
                job_id=job_id,
                tenant_id=self.fleet.tenant_id,
                number=int(str(row.pop("number", 1))),
                fence=Fence(next(self._fences)),
                state=AttemptState.ENDED if row.get("ended_at") else AttemptState.RUNNING,
                placed_at=running_at or self.clock.now,
                on_node_loss=NodeLossRule.WAIT,
                rendezvous_address="127.0.0.1",
                rendezvous_port=29_500,
                running_at=running_at,
            )
            for name, value in row.items():
                setattr(made, name, value)
            unit.session.add(made)
        return attempt_id

    def happens(self, at: datetime, kind: str, job_id: JobId, **payload: object) -> None:
        self.clock.now = at
        with self.units.begin(OPERATOR, KEEP, quiet=True) as unit:
            unit.emit(kind, "checkpoint", "cp_1", payload={"job_id": job_id, **payload})

    def counts(self) -> dict[str, tuple[int, int]]:
        """By the end of five minutes, as hours and minutes: good and bad events."""
        with self.units.read() as session:
            rows = session.scalars(select(ObjectiveCount).order_by(ObjectiveCount.ends_at))
            return {f"{row.ends_at:%H:%M}": (row.num_good, row.num_bad) for row in rows}

    def state(self) -> ObjectiveState:
        with self.units.read() as session:
            return session.scalars(select(ObjectiveState)).one()

    def incidents(self) -> Sequence[Incident]:
        with self.units.read() as session:
            return session.scalars(select(Incident).order_by(Incident.opened_at)).all()

    def changes(self) -> list[tuple[str, str]]:
        with self.units.read() as session:
            rows = session.scalars(
                select(Event).where(Event.kind == "objective.state_changed").order_by(Event.serial)
            ).all()
        return [(row.payload["at"][11:16], row.payload["to"]) for row in rows]


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    return World(units, clock)


def test_success_counts_jobs_of_the_class_without_faults_of_the_tenant(world: World) -> None:
    world.judged_by(only("success"))
    world.ended(NOON, JobState.SUCCEEDED)
    world.ended(NOON + 4 * MINUTE, JobState.SUCCEEDED)
    world.ended(NOON + 6 * MINUTE, JobState.FAILED, Cause.NODE_LOST)
    world.ended(NOON + 6 * MINUTE, JobState.FAILED, Cause.USER_ERROR)
    world.ended(NOON + 6 * MINUTE, JobState.CANCELLED, Cause.CANCELLED)
    world.ended(NOON + 6 * MINUTE, JobState.SUCCEEDED, job_class="experiment")
    world.keep(NOON + 10 * MINUTE)
    assert world.counts() == {"12:05": (2, 0), "12:10": (0, 1)}


def test_a_job_that_faults_of_the_infrastructure_hold_is_a_bad_event(world: World) -> None:
    world.judged_by(only("success"))
    job_id = world.fleet.submit(job_class="production")
    world.attempt(job_id, NOON, ended_at=NOON + MINUTE, cause=Cause.SAVE_FAILED)
    world.happens(NOON + 2 * MINUTE, "job.held", job_id, **{"from": "ACTIVE"})
    with world.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.emit("job.held", "job", job_id, payload={"from": "ACTIVE"})
        unit.emit("job.held", "job", job_id, payload={"from": "QUEUED"})  # a person held it
    world.keep(NOON + 5 * MINUTE)
    assert world.counts() == {"12:05": (0, 1)}


def test_counting_again_changes_nothing(world: World) -> None:
    world.judged_by(only("success"))
    world.ended(NOON, JobState.SUCCEEDED)
    assert world.keep(NOON + 5 * MINUTE) == 1
    assert world.keep(NOON + 6 * MINUTE) == 0, "no five minutes are over since"
    world.ended(NOON + 4 * MINUTE, JobState.SUCCEEDED)  # it became known late
    world.keep(NOON + 10 * MINUTE)
    assert world.counts() == {"12:05": (2, 0)}


def test_a_job_without_a_class_counts_in_the_default_one(world: World) -> None:
    world.judged_by(only("success", job_class="standard"))
    world.ended(NOON, JobState.SUCCEEDED, job_class=None)
    with world.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        for job in unit.session.scalars(select(Job)):
            assert job.job_class == "standard"
            job.job_class = None  # as an earlier release leaves it
    world.keep(NOON + 5 * MINUTE)
    assert world.counts() == {"12:05": (1, 0)}


def test_a_start_is_late_from_the_moment_at_which_it_is(world: World) -> None:
    world.judged_by(only("start_latency", within_s=600.0))
    in_time, late, cancelled = (world.fleet.submit(job_class="production") for _ in range(3))
    with world.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        gone = unit.session.get_one(Job, cancelled)
        gone.state, gone.finished_at = JobState.CANCELLED, NOON + 9 * MINUTE
    world.attempt(in_time, NOON + 7 * MINUTE)
    world.keep(NOON + 10 * MINUTE)
    assert world.counts() == {"12:10": (1, 0)}
    world.keep(NOON + 15 * MINUTE)
    assert world.counts() == {"12:10": (1, 0), "12:15": (0, 1)}
    world.attempt(late, NOON + 16 * MINUTE)
    world.keep(NOON + 20 * MINUTE)
    assert world.counts() == {"12:10": (1, 0), "12:15": (0, 1)}


def test_saves_count_that_verify_and_that_fail(world: World) -> None:
    world.judged_by(only("checkpoint_success"))
    job_id = world.fleet.submit(job_class="production")
    for kind in ("checkpoint.verified", "checkpoint.failed", "checkpoint.rejected", "checkpoint.writing"):
        world.happens(NOON, kind, job_id)
    stale = "it was committed under an older fence, when a newer attempt had begun"
    world.happens(NOON, "checkpoint.rejected", job_id, reason=stale)
    world.keep(NOON + 5 * MINUTE)
    assert world.counts() == {"12:05": (1, 2)}


def test_a_resume_is_good_if_it_continues_where_a_checkpoint_is(world: World) -> None:
    world.judged_by(only("resume_success"))
    for verified, columns in (
        (True, {"resumed_from": "step-1/gen-1"}),
        (True, {}),
        (True, {"training_began_at": None, "ended_at": NOON + MINUTE, "cause": Cause.CHECKPOINT_CORRUPT}),
        (True, {"training_began_at": None, "ended_at": NOON + MINUTE, "cause": Cause.NODE_LOST}),
        (False, {}),
    ):
        job_id = world.fleet.submit(job_class="production")
        first = world.attempt(job_id, NOON - 9 * MINUTE, ended_at=NOON - MINUTE, cause=Cause.NODE_LOST)
        if verified:
            _add_checkpoint(world, job_id, first)
        world.attempt(job_id, NOON, number=2, **columns)
    world.keep(NOON + 5 * MINUTE)
    assert world.counts() == {"12:05": (1, 2)}


def _add_checkpoint(world: World, job_id: JobId, attempt_id: AttemptId) -> None:
    with world.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.add(
            Checkpoint(
                id=CheckpointId(new_id("checkpoint")),
                job_id=job_id,
                attempt_id=attempt_id,
                tenant_id=world.fleet.tenant_id,
                fence=Fence(1),
                step=1,
                generation="step-1/gen-1",
                status=CheckpointStatus.GOOD,
                manifest={},
                created_at=NOON - 5 * MINUTE,
                verified_at=NOON - 4 * MINUTE,
            )
        )


def test_five_minutes_of_uneven_steps_are_a_bad_event(world: World) -> None:
    world.judged_by(only("step_latency"))
    even, uneven = (_with_steps(world, slow_s) for slow_s in (1.9, 2.1))
    assert even != uneven
    world.keep(NOON + 5 * MINUTE)
    assert world.counts() == {"12:05": (1, 1)}


def _with_steps(world: World, slow_s: float) -> JobId:
    """A job of 19 steps of a second and two slow ones: the slow ones are its p95."""
    job_id = world.fleet.submit(job_class="production")
    attempt_id = world.attempt(job_id, NOON)
    with world.units.begin(OPERATOR, KEEP, quiet=True) as unit:
        unit.session.add_all(
            TrainingStep(
                attempt_id=attempt_id,
                step=step,
                job_id=job_id,
                tenant_id=world.fleet.tenant_id,
                step_s=slow_s if step > 18 else 1.0,
                at=NOON + timedelta(seconds=10 * step),
            )
            for step in range(21)
        )
    return job_id


def test_a_budget_burns_and_recovers_at_the_exact_moments_with_one_incident(world: World) -> None:
    world.judged_by(only("success", target=0.99))
    for _ in range(8):
        world.ended(NOON - 20 * MINUTE, JobState.SUCCEEDED)
    world.keep(NOON)
    assert (world.state().state, world.incidents()) == ("ok", [])
    for _ in range(2):
        world.ended(NOON + 2 * MINUTE, JobState.FAILED, Cause.NODE_LOST)
    world.keep(NOON + 5 * MINUTE)
    state = world.state()
    assert (state.state, state.state_since) == ("page", NOON + 5 * MINUTE)
    assert state.rates["fast"] == [pytest.approx(20.0), pytest.approx(100.0)]
    assert (state.num_good, state.num_bad, state.is_spent) == (8, 2, True)
    [incident] = world.incidents()
    assert (incident.kind, incident.subject_id) == ("objective_burning", "it")
    assert "the error budget of it (class production) burns" in incident.summary
    # Seen an hour late all the same: the short windows are clean after 5 and 30 minutes, and after 6 hours.
    world.keep(NOON + 70 * MINUTE)
    assert (world.state().state, len(world.incidents())) == ("ticket", 1)
    world.keep(NOON + timedelta(hours=7))
    assert world.state().state == "ok"
    assert world.state().state_since == NOON + timedelta(hours=6, minutes=5)
    assert [each.closed_at is not None for each in world.incidents()] == [True]
    assert world.changes() == [("12:05", "page"), ("12:35", "ticket"), ("18:05", "ok")]


def test_a_pass_that_was_late_leaves_the_same_changes(world: World) -> None:
    world.judged_by(only("success", target=0.99))
    world.keep(NOON)
    for _ in range(2):
        world.ended(NOON + 2 * MINUTE, JobState.FAILED, Cause.NODE_LOST)
    world.keep(NOON + 25 * MINUTE)
    world.keep(NOON + timedelta(hours=9))
    assert world.changes() == [("12:05", "page"), ("12:35", "ticket"), ("18:05", "ok")]


def test_another_indicator_under_the_same_name_is_counted_again(world: World) -> None:
    world.judged_by(only("success", target=0.99))
    for _ in range(2):
        world.ended(NOON, JobState.FAILED, Cause.NODE_LOST)
    world.keep(NOON + 5 * MINUTE)
    assert world.state().state == "page"
    world.judged_by(only("checkpoint_success", target=0.99))
    world.keep(NOON + 10 * MINUTE)
    assert (world.state().indicator, world.state().state, world.counts()) == ("checkpoint_success", "ok", {})
    assert [each.close_reason for each in world.incidents()] == ["the policy no longer has this objective"]


def test_an_objective_that_is_gone_leaves_nothing(world: World) -> None:
    world.judged_by(only("success"))
    world.ended(NOON, JobState.SUCCEEDED)
    world.keep(NOON + 5 * MINUTE)
    world.judged_by(ObjectivePolicy(targets={}))
    world.keep(NOON + 5 * MINUTE)
    with world.units.read() as session:
        assert session.scalars(select(ObjectiveState)).all() == []
    assert world.counts() == {}
