"""What a group of reports does to the database: forward only, once, each node its own."""

import threading
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import protocol
from control.telemetry import intake
from control.telemetry.boots import BootBook, record_boot
from control.telemetry.intake import Intake, IntakeLimits
from control.telemetry.reports import AcceptedReport, Duplicate, IncomingReport
from muster.db.models import Incident, Node, NodeLatest, StoredSignal, TelemetryBlock
from muster.domain.errors import ConflictError, NotFoundError, RateLimitedError
from muster.domain.ids import NodeId
from muster.domain.principals import Principal, Role
from muster.failpoints import arming
from muster.wire.host import PROTOCOL_VERSION, HeartbeatRequest
from muster.wire.telemetry import NodeReport
from tests.control.conftest import SetClock
from tests.control.telemetry.conftest import GPU, Stored, make_stored
from tests.fleet_factory import enrol_host
from tests.scaled import examples
from tests.telemetry_reports import reading, report, xid


def node_row(stored: Stored) -> NodeLatest:
    with stored.units.read() as session:
        return session.scalars(select(NodeLatest).where(NodeLatest.node_id == stored.node_id)).one()


def count(stored: Stored, table: type[Any]) -> int:
    with stored.units.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def beat(stored: Stored, boot_id: str, seq: int) -> None:
    principal = Principal(name="node", role=Role.NODE, node_id=stored.node_id)
    request = HeartbeatRequest(protocol=PROTOCOL_VERSION, boot_id=boot_id, seq=seq)
    with stored.units.begin(principal, protocol.HEARTBEAT, quiet=True) as unit:
        protocol.heartbeat(unit, request)


STEP = st.tuples(st.integers(1, 30), st.booleans())


@settings(
    max_examples=examples(25),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.lists(STEP, min_size=1, max_size=6), min_size=1, max_size=5))
def test_latest_state_only_moves_forward_whatever_comes(
    units: UnitOfWorkFactory, clock: SetClock, groups: list[list[tuple[int, bool]]]
) -> None:
    name = f"host-{count_nodes(units)}"
    stored = make_stored(units, clock, name)
    newest, seen = 0, set()
    try:
        for group in groups:
            reports = [
                report(seq, stored.now_ms + seq, reading(f"GPU-{name}-0", power_w=float(seq)), is_history=is_history)
                for seq, is_history in group
            ]
            outcomes = stored.take(*reports)
            for (seq, is_history), outcome in zip(group, outcomes, strict=True):
                assert isinstance(outcome, Duplicate) == (seq in seen), "each report has effect once"
                seen.add(seq)
                if isinstance(outcome, AcceptedReport) and not is_history:
                    newest = max(newest, seq)
            current = stored.latest().get(f"GPU-{name}-0")
            assert (current[1] if current else 0) == newest
    finally:
        stored.intake.close()


def count_nodes(units: UnitOfWorkFactory) -> int:
    with units.read() as session:
        return session.scalar(select(func.count()).select_from(Node)) or 0


def test_a_new_boot_takes_over_with_any_number(stored: Stored) -> None:
    stored.take(report(900, stored.now_ms, reading(GPU, power_w=1.0)))
    stored.clock.advance(60)
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=2.0), boot_id="boot-2"))
    assert stored.latest() == {GPU: ("boot-2", 16)}
    late = report(960, stored.now_ms + 1, reading(GPU, power_w=3.0))
    assert [type(outcome) for outcome in stored.take(late)] == [AcceptedReport]
    assert stored.latest() == {GPU: ("boot-2", 16)}, "the old boot is history"


def test_heartbeats_state_which_boot_is_current(stored: Stored) -> None:
    beat(stored, "boot-1", 1)
    beat(stored, "boot-2", 1)
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0), boot_id="boot-1"))
    assert stored.latest() == {}, "a boot that heartbeats have replaced"
    an_hour_ago = stored.now_ms - 3_600_000
    stored.take(report(16, an_hour_ago, reading(GPU, power_w=1.0), boot_id="boot-2"))
    assert stored.latest() == {GPU: ("boot-2", 16)}


def test_a_boot_that_no_heartbeat_names_is_expected_by_its_time_alone() -> None:
    book = BootBook("boot-1", order=1, seq=10, newest_ms=1_000)
    assert record_boot(book, "boot-0", 99, 900, known_boot="boot-1", past_boots=()) is None
    newer = record_boot(book, "boot-2", 1, 1_100, known_boot="boot-1", past_boots=())
    assert newer == BootBook("boot-2", order=2, seq=1, newest_ms=1_100, past=("boot-1",))
    assert record_boot(newer, "boot-1", 99, 2_000, known_boot=None, past_boots=()) is None
    back = record_boot(newer, "boot-1", 11, 500, known_boot="boot-1", past_boots=())
    assert back is not None, "heartbeats decide"
    assert back.order == 3


def test_node_readings_stay_where_a_report_has_none(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms - 5, node=NodeReport(num_gpus=2, driver_version="580")))
    stored.take(report(32, stored.now_ms - 7))
    row = node_row(stored)
    assert (row.seq, row.skew_ms, (row.readings or {})["driver_version"]) == (32, 7, "580")


def test_a_faulty_report_leaves_the_others_of_its_group_alone(stored: Stored) -> None:
    beta = enrol_host(stored.units, "beta")
    good = report(16, stored.now_ms, reading(GPU, power_w=1.0))
    foreign = report(32, stored.now_ms, reading("GPU-beta-0", power_w=1.0))
    unstorable = report(48, stored.now_ms, events=(xid("a\x00b", stored.now_ms),))
    outcomes = stored.take(good, foreign, unstorable)
    assert isinstance(outcomes[0], AcceptedReport)
    assert isinstance(outcomes[1], ConflictError)
    assert not isinstance(outcomes[2], AcceptedReport)
    (unknown,) = stored.take(report(16, stored.now_ms), node_id=NodeId("node_gone"))
    assert isinstance(unknown, NotFoundError)
    assert stored.latest() == {GPU: ("boot-1", 16)}
    assert beta not in {one.node_id for one in stored.received}


def test_a_host_that_reports_of_anothers_gpu_is_notified_of_once_by_both_names(stored: Stored) -> None:
    enrol_host(stored.units, "beta")
    for seq in (16, 32):
        (outcome,) = stored.take(report(seq, stored.now_ms, reading("GPU-beta-0", power_w=1.0)))
        assert isinstance(outcome, ConflictError)
    stored.take(report(48, stored.now_ms, reading(GPU, power_w=1.0)))
    with stored.units.read() as session:
        (told,) = session.scalars(select(Incident)).all()
    assert (told.kind, told.subject_id) == ("gpu_claimed_twice", "GPU-beta-0")
    assert (told.payload["enrolled_on"], told.payload["claimed_by"]) == ("beta", "alpha")


def test_a_claim_that_goes_on_is_read_again_only_after_a_while(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    enrol_host(stored.units, "beta")
    found: list[str] = []
    monkeypatch.setattr(intake, "report_claim", lambda *_: found.append("claim"))
    passed_s = 0.0
    monkeypatch.setattr(intake, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s))
    counts = []
    for seq, at_s in ((16, 0.0), (48, intake.CLAIM_REPORTED_S - 200), (80, intake.CLAIM_REPORTED_S + 1)):
        passed_s = at_s
        stored.take(report(seq, stored.now_ms, reading("GPU-beta-0", power_w=1.0)))
        stored.take(report(seq + 16, stored.now_ms, reading(GPU, power_w=1.0)))  # begins after what followed the claim
        counts.append(len(found))
    assert counts == [1, 1, 2]


def test_two_intakes_on_one_database_agree(stored: Stored) -> None:
    other = make_second(stored)
    reports = [report(seq * 16, stored.now_ms + seq, reading(GPU, power_w=float(seq))) for seq in range(1, 30)]
    kinds: list[type] = []

    def send(target: Stored) -> None:
        kinds.extend(type(outcome) for outcome in target.take(*reports))

    threads = [threading.Thread(target=send, args=(target,)) for target in (stored, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    other.intake.close()
    assert kinds.count(AcceptedReport) == len(reports)
    assert kinds.count(Duplicate) == len(reports)
    assert count(stored, TelemetryBlock) == len(reports)
    assert stored.latest() == {GPU: ("boot-1", 29 * 16)}


def make_second(stored: Stored) -> Stored:
    intake = Intake(stored.units, limits=IntakeLimits(pause_s=0.001, waiting_per_node=1_000))
    return Stored(stored.units, stored.clock, stored.node_id, intake)


def test_what_fails_around_the_commit_is_stored_once(stored: Stored) -> None:
    for number, place in enumerate(("before_commit", "after_commit"), start=1):
        with arming(f"telemetry.flush.{place}=raise@1"):
            (outcome,) = stored.take(report(number, stored.now_ms + number, reading(GPU, power_w=1.0)))
        assert not isinstance(outcome, AcceptedReport)
        (again,) = stored.take(report(number, stored.now_ms + number, reading(GPU, power_w=1.0)))
        assert isinstance(again, AcceptedReport if place == "before_commit" else Duplicate)
    assert count(stored, TelemetryBlock) == 2


def test_one_node_cannot_fill_the_queue(units: UnitOfWorkFactory, stored: Stored) -> None:
    slow = Intake(units, limits=IntakeLimits(pause_s=3600.0, waiting_per_node=3))
    answers: list[object] = []
    for seq in range(1, 4):
        slow.submit(IncomingReport(stored.node_id, None, report(seq, stored.now_ms), stored.now_ms), answers.append)
    with pytest.raises(RateLimitedError):
        slow.submit(IncomingReport(stored.node_id, None, report(4, stored.now_ms), stored.now_ms), answers.append)
    slow.close()
    assert [type(answer) for answer in answers] == [AcceptedReport] * 3, "what waited is stored at the end"


def test_groups_are_as_the_module_draws_them(
    units: UnitOfWorkFactory, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three reports within the pause are one group; a report that arrives during its commit is in the next."""
    groups: list[list[int]] = []
    is_committing, may_commit = threading.Event(), threading.Event()
    store = Intake._store

    def paused(self: Intake, group: list[Any]) -> Any:
        groups.append([each.incoming.report.seq for each in group])
        is_committing.set()
        assert may_commit.wait(30)
        return store(self, group)

    monkeypatch.setattr(Intake, "_store", paused)
    drawn = Intake(units, limits=IntakeLimits(pause_s=0.3))
    answers: list[object] = []

    def submit(seq: int) -> None:
        incoming = IncomingReport(stored.node_id, None, report(seq, stored.now_ms + seq), stored.now_ms)
        drawn.submit(incoming, answers.append)

    for seq in (1, 2, 3):
        submit(seq)
    assert is_committing.wait(30)
    submit(4)
    assert answers == [], "answered after the commit alone"
    may_commit.set()
    drawn.close()
    assert groups == [[1, 2, 3], [4]]
    assert [type(answer) for answer in answers] == [AcceptedReport] * 4


def test_signals_wake_the_judge_and_wait_for_it(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0)))
    assert not stored.intake.wake.is_set()
    at = stored.now_ms - round(timedelta(hours=5).total_seconds() * 1000)
    stored.take(report(32, stored.now_ms, events=(xid("old", at),), is_history=True))
    assert stored.intake.wake.is_set()
    assert count(stored, StoredSignal) == 1, "the events of history count"


def test_a_hook_that_fails_stops_nothing(units: UnitOfWorkFactory, stored: Stored) -> None:
    def fail(_reports: object) -> None:
        raise ZeroDivisionError

    intake = Intake(units, on_flushed=fail)
    broken = Stored(units, stored.clock, stored.node_id, intake)
    for seq in (16, 32):
        (outcome,) = broken.take(report(seq, stored.now_ms, reading(GPU, power_w=float(seq))))
        assert isinstance(outcome, AcceptedReport)
    intake.close()


def test_an_intake_without_any_report_is_not_stalled(units: UnitOfWorkFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled loop ends the process: an API that no agent reports to would end each minute."""
    idle = Intake(units)
    monkeypatch.setattr(idle.progress, "_clock", lambda: time.monotonic() + 2 * idle.progress.limit_s)
    assert not idle.progress.is_stalled
