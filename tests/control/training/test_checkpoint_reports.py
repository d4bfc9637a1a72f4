"""The generation from which a job continues, where two of its attempts report: late, at once, or one for the other."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta

import pytest
from sqlalchemy import select

from control.attempts.allowance import Allowance
from control.attempts.attempts import lock_attempt
from control.checkpoints.checkpoints import resume_of
from control.core.unit_of_work import UnitOfWorkFactory
from control.health.evacuation import EVACUATE
from control.policy.policies import active_policy
from control.training import training
from control.training.checkpoint_reports import CheckpointReports
from muster.db.models import Attempt, Checkpoint, Event
from muster.domain.ids import AttemptId
from muster.domain.principals import system_principal
from muster.domain.states import CheckpointStatus
from muster.domain.times import to_ms
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.filled_once import filled_world
from tests.fleet_factory import enrol_host, make_fleet
from tests.lock_waits import is_a_lock_awaited
from tests.played_host import PlayedHost
from tests.waiting import wait_until

Word = dict[str, object]
SHA256 = "a" * 64


class Job:
    """One whose first attempt ended without a word of its last checkpoint, and whose second one runs."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock) -> None:
        self.fleet = make_fleet(units)
        self.clock = clock
        self.host = PlayedHost(units, self.fleet.node_id)
        self.job_id = self.fleet.submit(restart={"max_restarts": 3})
        self.attempts: list[tuple[AttemptId, int]] = []
        self._offsets: dict[str, int] = {}
        self.start()
        self.host.report(*self.attempts[0], "exited", "clean", record={"launcher_exit_code": 1})
        self.start()

    def start(self) -> None:
        self.clock.advance(3600)
        self.host.beat()
        self.fleet.reconcile()
        self.fleet.cycle()
        attempt = self.fleet.attempts(self.job_id)[-1].attempt
        assert self.host.claim(attempt.id, attempt.fence).granted
        self.host.report(attempt.id, attempt.fence, "started")
        self.attempts.append((attempt.id, attempt.fence))

    def name(self, number: int, step: int) -> str:
        return f"step-{step:08d}/gen-{self.attempts[number][1]}"

    def word(self, number: int, step: int, *, kind: str = "checkpoint", ago_s: float = 0.0) -> Word:
        """Of a generation that attempt ``number`` made at ``step``."""
        at_ms = to_ms(self.clock.now - timedelta(seconds=ago_s))
        told: Word = {"type": kind, "step": step, "generation": self.name(number, step), "bytes": 10}
        return {**told, "status": "committed", "at_unix_ms": at_ms, "manifest_sha256": SHA256}

    def resumed(self, generation: str = "") -> Word:
        return {"type": "resumed", "step": 0, "generation": generation}

    def batch(self, number: int, *words: Word) -> TrainBatch:
        lines = tuple(TrainLine(at_ms=to_ms(self.clock.now), rank=0, message=word) for word in words)
        attempt_id, fence = self.attempts[number]
        offset = self._offsets.get(attempt_id, 0)
        self._offsets[attempt_id] = offset + 100
        return TrainBatch(protocol=PROTOCOL_VERSION, fence=fence, offset=offset, next_offset=offset + 100, lines=lines)

    def report(self, number: int, *words: Word) -> None:
        with self.saying(number, *words):
            pass

    @contextmanager
    def saying(self, number: int, *words: Word) -> Iterator[None]:
        """Taken, and committed at the end of the block."""
        batch = self.batch(number, *words)
        with self.fleet.units.begin(self.host.principal, training.RECORD, quiet=True) as unit:
            assert training.take(unit, self.attempts[number][0], batch).taken == len(words)
            unit.session.flush()
            yield

    def rows(self) -> dict[str, Checkpoint]:
        with self.fleet.units.read() as session:
            return {row.generation: row for row in session.scalars(select(Checkpoint))}

    def statuses(self) -> dict[str, CheckpointStatus]:
        return {name: row.status for name, row in self.rows().items()}

    def pointer(self) -> object:
        with self.fleet.units.read() as session:
            return resume_of(session, self.job_id)["generation"]


@pytest.fixture
def job(units: UnitOfWorkFactory, clock: SetClock) -> Job:
    return filled_world(units, clock, "a job in its second attempt", lambda: Job(units, clock))


def test_one_that_none_spoke_of_is_reported_by_the_attempt_that_goes_on_from_it(job: Job) -> None:
    found = job.word(0, 40, kind="checkpoint_found", ago_s=3000)
    job.report(1, found, job.resumed(job.name(0, 40)))
    (row,) = job.rows().values()
    first, second = job.attempts
    assert (row.status, row.attempt_id, row.fence, row.step) == (CheckpointStatus.VERIFIED, *first, 40)
    assert (row.manifest["sha256"], row.manifest["found_by"]) == (SHA256, second[0])
    assert row.committed_at == job.clock.now - timedelta(seconds=3000)
    assert job.pointer() == job.name(0, 40)
    with job.fleet.units.read() as session:
        (told,) = session.scalars(select(Event).where(Event.kind == "checkpoint.committed"))
    assert (told.subject_id, told.payload["made_by"]) == (second[0], first[0])
    job.report(1, found)
    job.report(0, {**found, "type": "checkpoint"})
    assert job.statuses() == {job.name(0, 40): CheckpointStatus.VERIFIED}, "its own late word changes nothing"


def test_a_word_that_came_late_counts_where_it_was_committed_in_time(job: Job) -> None:
    job.report(1, job.resumed())
    job.report(0, job.word(0, 40, ago_s=3000))
    assert job.statuses() == {job.name(0, 40): CheckpointStatus.COMMITTED}
    job.clock.advance(10)
    job.report(0, job.word(0, 44, ago_s=1))
    assert job.statuses()[job.name(0, 44)] is CheckpointStatus.REJECTED, "its successor had begun"
    assert "a newer attempt had begun" in str(job.rows()[job.name(0, 44)].reason)
    assert job.pointer() == job.name(0, 40)


def test_what_an_older_attempt_commits_next_to_its_successor_counts_for_nothing_once_that_is_received(job: Job) -> None:
    """The messages of the successor's host come later than the older host's."""
    job.report(0, job.word(0, 40, ago_s=3000), job.word(0, 44, ago_s=-5))
    assert set(job.statuses().values()) == {CheckpointStatus.COMMITTED}
    job.report(1, job.resumed(job.name(0, 40)))
    assert job.statuses() == {
        job.name(0, 40): CheckpointStatus.COMMITTED,
        job.name(0, 44): CheckpointStatus.REJECTED,
    }


def test_hosts_whose_clocks_differ_do_not_lose_the_one_that_training_goes_on_from(job: Job) -> None:
    job.report(0, job.word(0, 40, ago_s=-5))
    job.report(1, job.resumed(job.name(0, 40)))
    assert job.statuses() == {job.name(0, 40): CheckpointStatus.COMMITTED}


def test_one_of_a_tainted_attempt_is_tainted_whoever_reports_of_it(job: Job) -> None:
    first, _ = job.attempts
    since = job.clock.now - timedelta(seconds=2000)
    with job.fleet.units.begin(system_principal("judge"), EVACUATE, quiet=True) as unit:
        unit.session.get_one(Attempt, first[0]).tainted_since = since
    with job.fleet.units.read() as session:
        assert resume_of(session, job.job_id)["tainted_since_unix_ms"] == {str(first[1]): to_ms(since)}
    found = [job.word(0, step, kind="checkpoint_found", ago_s=ago_s) for step, ago_s in ((40, 2500), (44, 1500))]
    job.report(1, *found)
    assert job.statuses() == {
        job.name(0, 40): CheckpointStatus.VERIFIED,
        job.name(0, 44): CheckpointStatus.TAINTED,
    }
    assert job.pointer() == job.name(0, 40)


def reported_next(job: Job) -> Word:
    with job.fleet.units.read() as session:
        return resume_of(session, job.job_id)


def test_a_late_commit_that_a_third_attempt_finds_is_refused_as_if_its_own_had_notified_of_it(job: Job) -> None:
    """Its attempt had lost its network; the second one never saw it, and the third lists it above the second's."""
    job.report(1, job.resumed(), {**job.word(1, 60), "status": "verified"})
    began, (_, first_fence) = job.clock.now, job.attempts[0]
    job.clock.advance(10)
    late = job.word(0, 100, kind="checkpoint_found", ago_s=5)
    job.host.report(*job.attempts[1], "exited", "clean", record={"launcher_exit_code": 1})
    job.start()
    assert reported_next(job)["overtaken_since_unix_ms"] == {str(first_fence): to_ms(began)}
    job.report(2, late, job.resumed(job.name(1, 60)))
    assert job.statuses() == {
        job.name(1, 60): CheckpointStatus.VERIFIED,
        job.name(0, 100): CheckpointStatus.REJECTED,
    }
    assert "a newer attempt had begun" in str(job.rows()[job.name(0, 100)].reason)
    assert job.pointer() == job.name(1, 60)
    assert reported_next(job)["refuse"] == [job.name(0, 100)]


def test_what_the_second_went_on_from_stays_for_the_third_however_the_clocks_of_their_hosts_differ(job: Job) -> None:
    found = job.word(0, 40, kind="checkpoint_found", ago_s=-5)
    job.report(1, found, job.resumed(job.name(0, 40)))
    assert job.statuses() == {job.name(0, 40): CheckpointStatus.VERIFIED}
    _, first_fence = job.attempts[0]
    since = {str(first_fence): to_ms(job.clock.now + timedelta(seconds=5)) + 1}
    assert reported_next(job)["overtaken_since_unix_ms"] == since


def test_none_reports_of_what_is_no_earlier_attempts(job: Job) -> None:
    """A program may say anything: a fence that is its own, a newer one, or another job's."""
    other = job.word(0, 40, kind="checkpoint_found")
    own, newest = (f"step-00000040/gen-{job.attempts[1][1] + more}" for more in (0, 1))
    job.report(1, {**other, "generation": own}, {**other, "generation": newest})
    job.report(1, {**other, "generation": "step-00000040/gen-1"})
    job.report(0, {**other, "generation": job.name(1, 40)})
    assert job.rows() == {}


def has_met(job: Job, other: Future[None]) -> bool:
    return other.done() or is_a_lock_awaited(job.fleet.units)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["the stale one first", "the newer one first"])
def test_of_two_attempts_that_report_at_once_the_stale_one_moves_nothing(job: Job, order: tuple[int, int]) -> None:
    """Two connections: the second word waits for the first's commit, and is judged by what that left."""
    job.report(1, job.resumed())
    job.clock.advance(10)
    words = {0: job.word(0, 200), 1: job.word(1, 100)}
    first, second = order
    with ThreadPoolExecutor(1) as other_host:
        with job.saying(first, words[first]):
            other = other_host.submit(job.report, second, words[second])
            wait_until(lambda: has_met(job, other), pause_s=0.01)
            assert not other.done(), "one attempt's word waits while another's is taken"
        other.result()
    assert job.statuses() == {
        job.name(0, 200): CheckpointStatus.REJECTED,
        job.name(1, 100): CheckpointStatus.COMMITTED,
    }
    assert job.pointer() == job.name(1, 100)
    job.report(1, job.word(1, 104))
    job.report(0, job.word(0, 300))
    job.report(1, job.word(1, 96))
    assert job.pointer() == job.name(1, 104), "it never goes back"


def test_a_fence_that_is_given_out_while_a_word_is_taken_waits_for_it(job: Job) -> None:
    """So no attempt gets a generation without the generations reported before."""
    job.host.report(*job.attempts[1], "exited", "clean", record={"launcher_exit_code": 1})
    job.clock.advance(3600)
    job.host.beat()
    job.fleet.reconcile()
    with ThreadPoolExecutor(1) as scheduler:
        with job.saying(1, job.word(1, 100)):
            placing = scheduler.submit(job.fleet.cycle)
            wait_until(lambda: has_met(job, placing), pause_s=0.01)
            assert not placing.done()
        placing.result()
    assert len(job.fleet.attempts(job.job_id)) == 3
    assert job.pointer() == job.name(1, 100)


def test_the_order_of_a_job_of_many_thousand_checkpoints_fits_into_its_environment(job: Job) -> None:
    """Linux takes no variable of more than 128 KiB."""
    attempt_id, fence = job.attempts[0]
    with job.fleet.units.begin(system_principal("judge"), EVACUATE, quiet=True) as unit:
        rows = [
            Checkpoint(
                id=f"ckpt_{step}",  # type: ignore[arg-type]  # any name does
                job_id=job.job_id,
                attempt_id=attempt_id,
                tenant_id=job.fleet.tenant_id,
                fence=fence,  # type: ignore[arg-type]  # as it was read
                step=step,
                generation=job.name(0, step),
                status=CheckpointStatus.EXPIRED if step < 6000 else CheckpointStatus.VERIFIED,
                manifest={},
                created_at=unit.now,
            )
            for step in range(1, 6001)
        ]
        unit.session.add_all(rows)
    with job.fleet.units.read() as session:
        told = resume_of(session, job.job_id)
    assert told["generation"] == job.name(0, 6000)
    assert told["refuse"][0] == job.name(0, 5999)
    assert len(str(told)) < 16 << 10


def rule_of(units: UnitOfWorkFactory, attempt_id: AttemptId) -> str:
    with units.read() as session:
        return session.get_one(Attempt, attempt_id).on_node_loss.value


@pytest.mark.parametrize(("rule", "expected"), [(None, "fenced"), ("wait", "wait"), ("fenced", "fenced")])
def test_several_hosts_that_train_by_our_runtime_do_not_wait_for_a_lost_one(
    units: UnitOfWorkFactory, rule: str | None, expected: str
) -> None:
    fleet = make_fleet(units)
    hosts = [
        PlayedHost(units, node_id, boot_id=f"boot-{node_id}") for node_id in (fleet.node_id, enrol_host(units, "other"))
    ]
    for host in hosts:
        host.beat()
    said = {} if rule is None else {"on_node_loss": rule}
    job_id = fleet.submit(shape={"nodes": 2, "gpus_per_node": 1}, **said)
    fleet.cycle()
    first = fleet.attempts(job_id)[0].attempt
    assert rule_of(units, first.id) == (rule or "wait"), "before it has sent a message"
    for host in hosts:
        assert host.claim(first.id, first.fence).granted
    with units.begin(system_principal("test"), training.RECORD, quiet=True) as unit:
        loaded = lock_attempt(unit, first.id)
        policy = active_policy(unit.session)
        allowance = Allowance(unit, loaded.attempt, policy.limits.attempt)
        CheckpointReports(unit, loaded, policy, allowance).note_begun(unit.now)
    assert rule_of(units, first.id) == expected


def test_one_that_a_rollback_removed_counts_again_when_its_attempt_saves_that_step_again(job: Job) -> None:
    """The last save of a stop has the step of a removed one: the next attempt continues from it."""
    name = job.name(1, 20)
    expired: Word = {"type": "checkpoint_expired", "generation": name}
    job.report(1, job.resumed(), job.word(1, 20, ago_s=60), expired)
    assert job.statuses() == {name: CheckpointStatus.EXPIRED}
    job.report(1, job.word(1, 20, ago_s=60))
    assert job.statuses() == {name: CheckpointStatus.EXPIRED}, "a late report of the removed one"
    job.report(1, {"type": "checkpoint", "step": 20, "generation": name, "status": "writing"}, job.word(1, 20))
    assert job.statuses() == {name: CheckpointStatus.COMMITTED}
    assert job.pointer() == name
    with job.fleet.units.read() as session:
        assert name not in resume_of(session, job.job_id)["refuse"]
