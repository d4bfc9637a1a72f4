"""What one attempt's program may store: a limit is stated once, nothing is refused, and what is needed stays."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, text

from api.job_views import attempt_view
from control.checkpoints.checkpoints import resume_of
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import protocol
from control.jobs import jobs
from control.jobs.job_details import detail_of
from control.policy.policies import ACTIVATE, store_policy
from control.system.retention import sweep_once
from muster.db.models import AttemptUsage, Checkpoint, Event, LogChunk, TrainingHost, TrainingRank, TrainingStep
from muster.domain.ids import AttemptId
from muster.domain.job.dropped import dropped_in_words
from muster.domain.policy.document import Policy
from muster.domain.policy.limits import AttemptLimitPolicy, LimitPolicy
from muster.domain.principals import Principal, Role
from muster.domain.states import CheckpointStatus
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION, LogBatch
from muster.wire.host import LogChunk as Piece
from tests.control.conftest import SetClock
from tests.control.system.test_log_days import first_day
from tests.filled_once import filled_world
from tests.fleet_factory import make_fleet
from tests.lock_waits import wait_for_a_lock
from tests.played_host import PlayedHost

LIMITS = AttemptLimitPolicy(
    events=100, events_per_hour=10, checkpoints=512, steps=1_000, log_bytes=65_536, late_reports_s=600
)
GRACE_S = 600
DAY_S = 86_400
ENDED: dict[str, object] = {"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 3, "signal": None}}}


class World:
    """A host with one running attempt of two ranks, under small limits."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.units, self.clock = units, clock
        self.fleet = make_fleet(units)
        with units.begin(Principal(name="test", role=Role.OPERATOR), ACTIVATE) as unit:
            store_policy(unit, Policy(limits=LimitPolicy(attempt=LIMITS)), reason="small limits")
        self.host = PlayedHost(units, self.fleet.node_id)
        self.host.beat()
        self.fleet.reconcile()
        self.job_id = self.fleet.submit(shape={"gpus_per_node": 2}, restart={"max_restarts": 0})
        self.fleet.cycle()
        (unclaimed,) = self.host.beat().unclaimed
        self.attempt_id, self.fence = AttemptId(unclaimed.attempt_id), unclaimed.fence
        assert self.host.claim(self.attempt_id, self.fence).granted
        self.host.report(self.attempt_id, self.fence, "started")
        self._offset = 0

    def report(self, *words: dict[str, object], rank: int = 0) -> int:
        """Send a rank's messages, and return how many the server took."""
        at_ms = to_ms(self.clock.now)
        sent = {"at_ms": at_ms, "offset": self._offset, "rank": rank}
        answer = self.host.report_words(self.attempt_id, self.fence, *words, **sent)
        assert answer.offset == self._offset + 100, "the host continues with the next lines"
        self._offset = answer.offset
        return answer.taken

    def print(self, *pieces: tuple[str, int, bytes]) -> int:
        """Send pieces of output, and return how many were stored."""
        chunks = tuple(Piece(stream=stream, offset=offset, content=content) for stream, offset, content in pieces)
        batch = LogBatch(protocol=PROTOCOL_VERSION, fence=self.fence, chunks=chunks)
        with self.units.begin(self.host.principal, protocol.LOGS, quiet=True) as unit:
            return protocol.store_logs(unit, self.attempt_id, batch).stored

    def end(self) -> None:
        self.host.report(self.attempt_id, self.fence, "exited", "cleaned", record=ENDED)

    def saved(self, step: int, status: str = "verified") -> dict[str, object]:
        name = f"step-{step:08d}/gen-{self.fence}"
        report: dict[str, object] = {"type": "checkpoint", "step": step, "generation": name, "status": status}
        return {**report, "at_unix_ms": to_ms(self.clock.now)}

    def dropped(self) -> list[tuple[str, str]]:
        """Return what the events of the attempt state to be left out, with the reason."""
        with self.units.read() as session:
            found = session.scalars(select(Event.payload).where(Event.kind == "attempt.reports_dropped"))
            return [(each["what"], each["reason"]) for each in found.all()]

    def usage(self, kind: str) -> AttemptUsage:
        with self.units.read() as session:
            return session.scalars(select(AttemptUsage).where(AttemptUsage.kind == kind)).one()

    def execute(self, statement: str) -> None:
        with self.units.engine.begin() as connection:
            connection.execute(text(statement))

    def count(self, table: type) -> int:
        with self.units.read() as session:
            return session.scalar(select(func.count()).select_from(table)) or 0

    def kinds(self) -> Sequence[str]:
        with self.units.read() as session:
            return session.scalars(select(Event.kind).where(Event.subject_id == self.attempt_id)).all()

    def output(self, stream: str) -> bytes:
        with self.units.read() as session:
            query = select(LogChunk.content).where(LogChunk.stream == stream).order_by(LogChunk.position)
            return b"".join(session.scalars(query).all())


@pytest.fixture
def world(units: UnitOfWorkFactory, clock: SetClock) -> World:
    return filled_world(units, clock, "an attempt under small limits", lambda: World(units, clock))


def unreadable(number: int) -> dict[str, object]:
    return {"type": "checkpoint_unreadable", "generation": f"step-{number:08d}/gen-1", "why": "of its own"}


def test_events_beyond_the_limit_are_counted_and_one_event_states_that(world: World) -> None:
    assert world.report(*(unreadable(number) for number in range(150))) == 150, "none is refused"
    assert world.kinds().count("checkpoint.unreadable") == 100
    ((what, reason),) = world.dropped()
    limit = "its program has reported as many events as one attempt may (100 and 10 an hour, limits.attempt)"
    assert (what, reason) == ("events", f"{limit}: further ones are counted and left out")
    world.report(unreadable(1))
    assert (len(world.dropped()), world.usage("events").num_dropped) == (1, 51)
    world.clock.advance(3600)
    world.report(*(unreadable(number) for number in range(20)))
    assert world.kinds().count("checkpoint.unreadable") == 110, "an hour allows ten more"
    assert len(world.dropped()) == 1


def test_each_edge_of_a_checkpoint_has_its_event_beyond_the_limit_too(world: World) -> None:
    """Such as the edges of a checkpoint that was begun before. No further row is made, and the runtime continues."""
    world.report(world.saved(4, "writing"))
    world.report(*(unreadable(number) for number in range(150)))
    world.report(
        world.saved(4), world.saved(8), {"type": "checkpoint_expired", "generation": world.saved(4)["generation"]}
    )
    with world.units.read() as session:
        assert session.execute(select(Checkpoint.step, Checkpoint.status)).all() == [(4, CheckpointStatus.EXPIRED)]
        edges = session.scalars(select(Event.kind).where(Event.kind.startswith("checkpoint."))).all()
    assert {"checkpoint.writing", "checkpoint.committed", "checkpoint.verified", "checkpoint.expired"} <= set(edges)


def test_beyond_their_limit_the_oldest_removed_checkpoints_make_room_and_no_other(world: World) -> None:
    world.report(world.saved(600))
    fill = """
        INSERT INTO checkpoints
            (id, job_id, attempt_id, tenant_id, fence, step, generation, status, manifest, created_at)
        SELECT 'ckpt_' || at, job_id, attempt_id, tenant_id, fence, at, 'step-' || at, 'VERIFIED', '{}', created_at
        FROM checkpoints, generate_series(1, 511) AS made (at) WHERE checkpoints.step = 600
    """
    world.execute(fill)
    world.report(world.saved(700), world.saved(800))
    ((what, reason),) = world.dropped()
    assert (what, reason.partition(" (")[0]) == ("checkpoints", "the attempt has 512 checkpoints that were not removed")
    assert (world.count(Checkpoint), world.usage("checkpoints").num_dropped) == (512, 2)
    world.execute("UPDATE checkpoints SET status = 'EXPIRED' WHERE step <= 300")
    world.report(world.saved(700))
    with world.units.read() as session:
        steps = session.scalars(select(Checkpoint.step).order_by(Checkpoint.step)).all()
        assert resume_of(session, world.job_id)["generation"] == world.saved(700)["generation"]
    assert steps[0] > 1
    assert {600, 700} < set(steps)
    assert set(range(301, 512)) < set(steps)


def test_beyond_their_limit_steps_are_only_in_the_thinned_history(world: World) -> None:
    steps = [{"type": "step", "step": step, "loss": 1.0, "step_s": 0.1, "samples": 1} for step in range(1, 1_201)]
    world.report(*steps[:900])
    world.report(*steps[900:])
    with world.units.read() as session:
        (rank,) = session.scalars(select(TrainingRank)).all()
        assert (rank.step, rank.history["points"][-1][0] > 900) == (1_200, True)  # type: ignore[index]
    world.report(steps[0])
    assert world.count(TrainingStep) == 900
    assert [what for what, _ in world.dropped()] == ["steps"]


def test_output_beyond_the_limit_is_cut_with_a_line_with_the_place(world: World) -> None:
    assert world.print(("0", 0, b"a" * 60_000), ("launcher", 0, b"b" * 5_000)) == 2
    assert world.print(("0", 0, b"a" * 60_000), ("0", 60_000, b"c" * 1_000), ("1", 0, b"d" * 9)) == 2
    assert world.print(("0", 61_000, b"e" * 9), ("1", 9, b"f"), ("1", 0, b"d" * 9)) == 0
    why = b"its attempt has printed 65,536 bytes (limits.attempt.log_bytes)"
    cut = b"\n[muster: the output is cut here, at byte %s: %s]\n"
    assert world.output("0") == b"a" * 60_000 + b"c" * 536 + cut % (b"60,536", why)
    assert world.output("1") == cut % (b"0", why)
    assert world.output("launcher") == b"b" * 5_000
    assert world.usage("log_bytes").num_dropped == 464 + 9 + 9 + 1
    assert [what for what, _ in world.dropped()] == ["log_bytes"]


def test_a_piece_that_a_host_repeats_on_a_later_day_is_stored_once(world: World) -> None:
    """A host that was cut off sends again what got no answer; each day has a partition of its own."""
    world.clock.now = first_day(world.units)
    for number in range(3):
        sweep_once(world.units)
        assert world.print(("0", 0, b"a" * 10), ("0", 10 + number, b"b")) == (2 if number == 0 else 1)
        world.clock.advance(DAY_S)
    assert world.output("0") == b"a" * 10 + b"b" * 3
    assert world.usage("log_bytes").amount == 13
    partitions = "SELECT count(DISTINCT tableoid), bool_or(tableoid = 'log_chunks_default'::regclass) FROM log_chunks"
    with world.units.read() as session:
        assert session.execute(text(partitions)).one() == (3, False)


def test_output_that_a_host_repeats_is_counted_as_left_out_once(world: World) -> None:
    """A host without an answer sends the same pieces again, or pieces with other borders."""
    world.print(("0", 0, b"a" * 65_000))
    beyond = (("0", 65_000, b"b" * 1_000), ("0", 66_000, b"c" * 500), ("1", 0, b"d" * 100))
    world.print(*beyond)
    assert (dropped := world.usage("log_bytes").num_dropped) == 1_500 - 536 + 100
    assert world.print(*beyond) == 0
    assert world.print(("0", 66_000, b"c" * 500), ("0", 66_500, b"e" * 20)) == 0
    assert world.print(("0", 66_100, b"c" * 420), ("1", 50, b"d" * 60)) == 0
    assert world.usage("log_bytes").num_dropped == dropped + 20 + 10


def test_a_reader_of_an_attempt_sees_what_was_left_out(world: World) -> None:
    def shown() -> tuple[object, str]:
        (view,) = world.fleet.attempts(world.job_id)
        with world.units.begin(world.fleet.tenant, jobs.READ, dry_run=True, quiet=True) as unit:
            (detail,) = detail_of(unit, world.job_id).attempts
        assert detail.dropped == view.dropped, "page and API read the same"
        return attempt_view(view)["dropped"], dropped_in_words(view.dropped)

    assert shown() == ({"log_bytes": 0, "events": 0, "checkpoints": 0, "steps": 0}, "")
    world.report(*(unreadable(number) for number in range(101)))
    world.print(("0", 0, b"a" * 66_000), ("1", 0, b"b" * 1_000))
    words = "1,464 bytes of output (limits.attempt.log_bytes), 1 event (limits.attempt.events)"
    assert shown() == ({"log_bytes": 1_464, "events": 1, "checkpoints": 0, "steps": 0}, words)


def test_what_fits_a_raised_limit_is_stored_also_of_a_stream_that_was_cut_before(world: World) -> None:
    world.print(("0", 0, b"a" * 65_000), ("0", 65_000, b"b" * 1_000))
    dropped, stored = world.usage("log_bytes").num_dropped, world.usage("log_bytes").amount
    with world.units.begin(Principal(name="test", role=Role.OPERATOR), ACTIVATE) as unit:
        raised = LIMITS.model_copy(update={"log_bytes": stored + 150})
        store_policy(unit, Policy(limits=LimitPolicy(attempt=raised)), reason="more output")
    assert world.print(("0", 66_000, b"c" * 100), ("0", 66_100, b"d" * 100), ("0", 66_200, b"e" * 100)) == 2
    assert b"c" * 100 + b"d" * 50 + b"\n[muster: the output is cut here, at byte 66,150:" in world.output("0")
    assert world.usage("log_bytes").num_dropped == dropped + 150


def test_hosts_that_send_at_once_do_not_pass_the_limit_together(world: World) -> None:
    """The second one reads what is stored once the first has committed: it waits for its turn before."""
    world.print(("0", 0, b"a" * 60_000))
    first = LogBatch(
        protocol=PROTOCOL_VERSION, fence=world.fence, chunks=(Piece(stream="1", offset=0, content=b"b" * 5_000),)
    )
    with ThreadPoolExecutor(1) as other:
        with world.units.begin(world.host.principal, protocol.LOGS, quiet=True) as unit:
            protocol.store_logs(unit, world.attempt_id, first)
            second = other.submit(world.print, ("1", 5_000, b"c" * 5_000))
            wait_for_a_lock(world.units)
        assert second.result() == 1
    assert world.output("1").partition(b"\n")[0] == b"b" * 5_000 + b"c" * 536


def test_nothing_is_stored_for_ranks_that_do_not_exist(world: World) -> None:
    assert world.print(("2", 0, b"of no rank"), ("1", 0, b"of one"), ("launcher", 0, b"of none")) == 2
    assert world.output("2") == b""
    world.report({"type": "outcome", "exit": "failed", "step": 1, "message": "", "dropped_lines": 0}, rank=2)
    with world.units.read() as session:
        assert session.scalars(select(TrainingRank)).all() == []
        assert session.scalars(select(TrainingHost.num_refused)).all() == [1]


def test_last_lines_of_an_ended_attempt_are_stored_for_a_while_and_then_passed_over(world: World) -> None:
    """A host of the release before takes the answer as that to a first batch, and removes its files."""
    world.end()
    world.clock.advance(GRACE_S)
    world.report(world.saved(4))
    assert world.print(("0", 0, b"late")) == 1
    world.clock.advance(1)
    events = world.count(Event)
    world.report(world.saved(8))
    assert world.print(("0", 4, b"too late")) == 0
    assert (world.output("0"), world.count(Checkpoint), world.count(Event)) == (b"late", 1, events)
