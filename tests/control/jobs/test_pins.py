"""Pins of checkpoints: which callers may set one, what its program receives, and what the store reports."""

import json
from dataclasses import dataclass

import pytest
from sqlalchemy import select

from control.checkpoints.types import CheckpointRecord
from control.core.records import records_of
from control.core.unit_of_work import UnitOfWorkFactory
from control.jobs import pins
from muster.db.models import AuditEntry, Checkpoint, Event
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import CheckpointId, JobId, TenantId
from muster.domain.principals import Principal, Role
from muster.domain.states import CheckpointStatus
from muster.domain.times import to_ms
from muster.identity import new_id
from muster.wire.training import TrainAnswer
from tests.control.conftest import SetClock
from tests.filled_once import filled_world
from tests.fleet_factory import Fleet, make_fleet
from tests.played_host import PlayedHost


@dataclass
class Saved:
    """A job that runs and has saved at steps 4 and 8."""

    fleet: Fleet
    host: PlayedHost
    clock: SetClock
    job_id: JobId
    attempt_id: str
    fence: int
    offset: int

    def receive(self, *messages: dict[str, object]) -> TrainAnswer:
        at_ms = to_ms(self.clock.now)
        answer = self.host.report_words(self.attempt_id, self.fence, *messages, at_ms=at_ms, offset=self.offset)
        self.offset = answer.offset
        return answer

    def rows(self) -> list[CheckpointRecord]:
        with self.fleet.units.read() as session:
            return records_of(session.scalars(select(Checkpoint).order_by(Checkpoint.step)), CheckpointRecord)

    def pin(self, checkpoint_id: str, by: Principal | None = None) -> CheckpointRecord:
        with self.fleet.units.begin(by or self.fleet.tenant, pins.PIN) as unit:
            return pins.pin(unit, self.job_id, CheckpointId(checkpoint_id), reason="published")

    def unpin(self, checkpoint_id: str) -> CheckpointRecord:
        with self.fleet.units.begin(self.fleet.tenant, pins.UNPIN) as unit:
            return pins.unpin(unit, self.job_id, CheckpointId(checkpoint_id))

    def kinds(self) -> list[str]:
        with self.fleet.units.read() as session:
            return list(
                session.scalars(select(Event.kind).where(Event.kind.like("checkpoint.%pin%")).order_by(Event.id))
            )


@pytest.fixture
def saved(clock: SetClock, units: UnitOfWorkFactory) -> Saved:
    return filled_world(units, clock, "a job that saved twice", lambda: _make_saved(units, clock))


def _make_saved(units: UnitOfWorkFactory, clock: SetClock) -> Saved:
    fleet = make_fleet(units)
    host = PlayedHost(units, fleet.node_id)
    job_id = fleet.submit()
    host.beat()
    fleet.cycle()
    attempt = fleet.attempts(job_id)[-1].attempt
    assert host.claim(attempt.id, attempt.fence).granted
    host.report(attempt.id, attempt.fence, "started")
    made = Saved(fleet, host, clock, job_id, attempt.id, attempt.fence, 0)
    for step in (4, 8):
        made.offset = host.report_saved(attempt.id, attempt.fence, step, at_ms=to_ms(clock.now), offset=made.offset)
    return made


def test_its_program_receives_of_a_pin_with_the_answer_to_its_next_word_and_states_when_it_is_marked(
    saved: Saved,
) -> None:
    first, second = saved.rows()
    assert saved.receive({"type": "step", "step": 9}).pinned == ()
    pinned = saved.pin(first.id)
    assert (pinned.pinned_by, pins.pin_text(pinned)) == (
        saved.fleet.tenant.name,
        f"pinned by {saved.fleet.tenant.name}; its program has yet to mark it",
    )
    saved.pin(first.id)
    assert saved.receive({"type": "step", "step": 10}).pinned == (first.generation,)
    marked = {"type": "checkpoint_pinned", "generation": first.generation, "is_pinned": True}
    saved.receive(marked, marked)
    assert [row.pin_applied_at is not None for row in saved.rows()] == [True, False]
    saved.unpin(first.id)
    assert saved.receive({**marked, "is_pinned": False}).pinned == ()
    assert [pins.pin_text(row) for row in saved.rows()] == ["", ""]
    assert saved.kinds() == [
        "checkpoint.pinned",
        "checkpoint.pin_applied",
        "checkpoint.unpinned",
        "checkpoint.pin_left",
    ]
    with saved.fleet.units.read() as session:
        (entry,) = session.scalars(select(AuditEntry).where(AuditEntry.action == "checkpoint.pin"))
    assert (entry.reason, entry.detail["generation"]) == ("published", first.generation)
    assert second.pinned_at is None


def test_the_next_attempt_is_reported_with_its_order_and_how_to_scrub(saved: Saved) -> None:
    first, _ = saved.rows()
    saved.pin(first.id)
    saved.host.report(saved.attempt_id, saved.fence, "exited", "clean", record={"launcher_exit_code": 75})
    saved.clock.advance(3600)
    saved.host.beat()
    saved.fleet.reconcile()
    saved.fleet.cycle()
    attempt = saved.fleet.attempts(saved.job_id)[-1].attempt
    assert attempt.fence > saved.fence
    order = saved.host.claim(attempt.id, attempt.fence).order
    assert order is not None
    assert json.loads(order.env["MUSTER_RESUME"])["pinned"] == [first.generation]
    assert json.loads(order.env["MUSTER_SCRUB"]) == {"interval_s": 86_400.0, "bytes_per_s": 50e6}


def test_what_is_damaged_or_gone_cannot_be_pinned_and_what_is_tainted_can(saved: Saved) -> None:
    first, second = saved.rows()
    saved.receive({"type": "checkpoint_rejected", "generation": first.generation, "why": "one byte differs"})
    with pytest.raises(ConflictError, match="is REJECTED: one byte differs"):
        saved.pin(first.id)
    saved.pin(second.id)
    saved.receive({"type": "checkpoint_rejected", "generation": second.generation, "why": "another byte"})
    row = saved.rows()[1]
    assert row.status is CheckpointStatus.REJECTED
    assert row.pinned_at is not None, "what was pinned before it was damaged stays, to be inspected"
    saved.receive({"type": "checkpoint_expired", "generation": first.generation})
    with pytest.raises(ConflictError, match="is EXPIRED: its files were deleted"):
        saved.pin(first.id)


def test_a_pinned_one_that_is_gone_all_the_same_is_ordered_to_none_any_more(saved: Saved) -> None:
    first, _ = saved.rows()
    saved.pin(first.id)
    answer = saved.receive({"type": "checkpoint_expired", "generation": first.generation})
    assert answer.pinned == ()


def test_more_pins_than_a_job_may_have_are_refused(saved: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MOST_PINS", 1)
    first, second = saved.rows()
    saved.pin(first.id)
    with pytest.raises(ConflictError, match="1 checkpoints of this job are pinned"):
        saved.pin(second.id)
    saved.unpin(first.id)
    assert saved.pin(second.id).pinned_at is not None


def test_another_tenants_checkpoint_is_not_there(saved: Saved) -> None:
    other = TenantId(new_id("tenant"))
    stranger = Principal(name="stranger", role=Role.TENANT_ADMIN, tenant_id=other)
    first, _ = saved.rows()
    with pytest.raises(NotFoundError):
        saved.pin(first.id, by=stranger)
    with pytest.raises(NotFoundError):
        saved.pin("ckpt_00000000000000000000000000")


def test_a_scrub_that_found_nothing_is_remembered(saved: Saved) -> None:
    first, _ = saved.rows()
    saved.receive({"type": "checkpoint_scrubbed", "generation": first.generation})
    assert [row.scrubbed_at for row in saved.rows()] == [saved.clock.now, None]
