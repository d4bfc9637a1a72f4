"""Positions: without gaps, each once, and never behind a reader's back."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from control.core.sequencer import has_unsequenced, sequence_once
from control.core.unit_of_work import UnitOfWorkFactory, declare_action
from muster.db.models import Event
from muster.db.queries.events import cursor_of, events_after, move_cursor, newest_position
from muster.domain.ids import EventId
from muster.domain.principals import system_principal
from muster.failpoints import FailpointError, arming
from muster.identity import new_id

ACTION = declare_action("test.write")
SYSTEM = system_principal("test")


def write(units: UnitOfWorkFactory, subject: str, *, before_commit: Callable[[], object] = lambda: None) -> None:
    """One event, written before and committed after ``before_commit``."""
    with units.begin(SYSTEM, ACTION, quiet=True) as unit:
        event_id = EventId(new_id("event"))
        unit.session.add(
            Event(id=event_id, at=unit.now, kind="test.written", subject_type="test", subject_id=subject, payload={})
        )
        unit.session.flush()
        before_commit()


def read_after(units: UnitOfWorkFactory, position: int) -> list[tuple[int | None, str]]:
    with units.read() as session:
        return [(event.position, event.subject_id) for event in events_after(session, position, limit=1000)]


def test_a_late_commit_gets_a_later_position(units: UnitOfWorkFactory) -> None:
    is_written, may_commit = threading.Event(), threading.Event()

    def late() -> None:
        is_written.set()
        may_commit.wait(60)

    with ThreadPoolExecutor(1) as pool:
        early_bird = pool.submit(write, units, "began first", before_commit=late)
        assert is_written.wait(60)
        write(units, "committed first")
        assert sequence_once(units) == 1
        assert read_after(units, 0) == [(1, "committed first")]
        may_commit.set()
        early_bird.result()
    assert sequence_once(units) == 1
    assert read_after(units, 1) == [(2, "began first")]


def test_positions_have_no_gap_and_no_reader_skips_under_concurrent_writers(units: UnitOfWorkFactory) -> None:
    num_writers, num_each = 4, 25
    is_over = threading.Event()
    seen: list[int] = []

    def write_many(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  # pauses that can be repeated
        for number in range(num_each):
            write(units, f"{seed}/{number}", before_commit=lambda: time.sleep(chance.uniform(0, 0.01)))

    def sequence() -> None:
        while not is_over.is_set():
            sequence_once(units, batch=7)

    def follow() -> None:
        while not is_over.is_set():
            position = seen[-1] if seen else 0
            seen.extend(found for found, _ in read_after(units, position) if found is not None)

    with ThreadPoolExecutor(num_writers + 3) as pool:
        background = [pool.submit(work) for work in (sequence, sequence, follow)]
        try:
            for writer in [pool.submit(write_many, seed) for seed in range(num_writers)]:
                writer.result()
            deadline = time.monotonic() + 100
            while len(seen) < num_writers * num_each and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            is_over.set()
        for work in background:
            work.result()
    assert seen == list(range(1, num_writers * num_each + 1))


def test_an_event_is_work_until_it_has_its_position(units: UnitOfWorkFactory) -> None:
    assert not has_unsequenced(units)
    write(units, "one")
    assert has_unsequenced(units)
    sequence_once(units)
    assert not has_unsequenced(units)


def test_events_of_one_unit_are_numbered_in_their_order(units: UnitOfWorkFactory) -> None:
    with units.begin(SYSTEM, ACTION) as unit:
        for number in range(30):
            unit.emit("test.written", "test", str(number))
    sequence_once(units)
    assert read_after(units, 0) == [(number + 1, str(number)) for number in range(30)]


def test_a_sequencer_that_dies_before_its_commit_numbers_nothing(units: UnitOfWorkFactory) -> None:
    write(units, "a")
    with pytest.raises(FailpointError), arming("sequencer.sequence.before_commit=raise"):
        sequence_once(units)
    with units.read() as session:
        assert newest_position(session) == 0
    assert sequence_once(units) == 1
    assert sequence_once(units) == 0


def test_positions_go_on_after_old_events_are_dropped(units: UnitOfWorkFactory) -> None:
    write(units, "old")
    sequence_once(units)
    with units.begin(SYSTEM, ACTION, quiet=True) as unit:
        unit.session.execute(text("DELETE FROM events"))
    write(units, "new")
    sequence_once(units)
    assert read_after(units, 0) == [(2, "new")]


def test_a_cursor_never_moves_back(units: UnitOfWorkFactory) -> None:
    for position in (5, 3):
        with units.begin(SYSTEM, ACTION, quiet=True) as unit:
            move_cursor(unit.session, "webhooks", position)
    with units.read() as session:
        assert (cursor_of(session, "webhooks"), cursor_of(session, "new one")) == (5, 0)


@pytest.mark.parametrize(
    "statement", ["UPDATE events SET kind = 'other'", "UPDATE events SET position = 9 WHERE position = 1"]
)
def test_an_event_never_changes(units: UnitOfWorkFactory, statement: str) -> None:
    write(units, "a")
    sequence_once(units)
    with pytest.raises(IntegrityError), units.begin(SYSTEM, ACTION, quiet=True) as unit:
        unit.session.execute(text(statement))
    with units.read() as session:
        assert session.scalars(select(Event)).one().kind == "test.written"
