"""The relay of a training's words: what bounds it, what it does with what the server does not want, and its death."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import Engine, select

from control.core.unit_of_work import UnitOfWorkFactory
from muster.client.transport import Problem
from muster.db.models import LineFindingRow, TrainingHost, TrainingStep
from muster.domain.ids import AttemptId
from muster.wire.training import TrainAnswer, TrainBatch
from tests.fleet_factory import Fleet, make_fleet
from tests.host_case import DirectClient
from tests.played_host import PlayedHost
from workers.host import training_relay
from workers.host.log_relay import LogRelay
from workers.host.supervisor import files
from workers.host.supervisor.record import train_socket
from workers.host.training_relay import NUM_REFUSED


class Guarded(DirectClient):
    """The services behind something that takes no body above ``most_bytes``, as a proxy does. Counts the requests."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet)
        self.most_bytes: int | None = None
        self.requested: list[tuple[str, int]] = []

    def send_training(self, attempt_id: AttemptId, batch: TrainBatch) -> TrainAnswer:
        self.requested.append((attempt_id, len(batch.lines)))
        if self.most_bytes is not None and len(msgspec.json.encode(batch)) > self.most_bytes:
            raise Problem(413, "too_large", "no body of that size")
        return super().send_training(attempt_id, batch)


class Speaking:
    """An attempt on a host whose rank 0 says what the test has it say, through the supervisor's own socket."""

    def __init__(self, fleet: Fleet, host: PlayedHost, state_dir: Path) -> None:
        self.fleet = fleet
        job_id = fleet.submit()
        host.beat()
        fleet.cycle()
        attempt = fleet.attempts(job_id)[-1].attempt
        assert host.claim(attempt.id, attempt.fence).granted
        host.report(attempt.id, attempt.fence, "started")
        self.attempt_id, self.fence = attempt.id, attempt.fence
        self.folder = state_dir / "attempts" / attempt.id
        (self.folder / files.LOGS).mkdir(parents=True)
        self.write_order(self.fence)
        path = state_dir / f"s{len(list(state_dir.iterdir()))}"
        self.socket = train_socket.TrainSocket(self.folder, path, {0})
        self._rank = socket.socket(socket.AF_UNIX)
        self._rank.connect(str(path))
        self.report(type="hello", rank=0, world_size=1)

    def write_order(self, fence: int) -> None:
        (self.folder / "order.json").write_text(json.dumps({"fence": fence}), encoding="utf-8")

    def report(self, **message: object) -> None:
        self._rank.sendall(json.dumps(message).encode() + b"\n")
        self.socket.pump()

    def report_steps(self, first: int, last: int, *, text: str = "") -> None:
        for step in range(first, last + 1):
            self.report(type="step", step=step, loss=1.0, text=text)

    def steps(self) -> list[int]:
        query = select(TrainingStep.step).where(TrainingStep.attempt_id == self.attempt_id).order_by(TrainingStep.step)
        with self.fleet.units.read() as session:
            return list(session.scalars(query))

    def num_refused(self) -> int:
        with self.fleet.units.read() as session:
            return session.get_one(TrainingHost, (self.attempt_id, self.fleet.node_id)).num_refused

    def relayed(self) -> dict[str, int]:
        return files.read_json(self.folder / files.RELAYED) or {}

    def close(self) -> None:
        self._rank.close()
        self.socket.close()


@pytest.fixture
def start(engine: Engine, short_folder: Path, request: pytest.FixtureRequest) -> Callable[[], Speaking]:
    fleet = make_fleet(UnitOfWorkFactory(engine))
    host = PlayedHost(fleet.units, fleet.node_id)

    def begun() -> Speaking:
        speaking = Speaking(fleet, host, short_folder)
        request.addfinalizer(speaking.close)
        return speaking

    return begun


def relay_of(speaking: Speaking) -> tuple[Guarded, LogRelay]:
    client = Guarded(speaking.fleet)
    return client, LogRelay(speaking.folder.parents[1], client)  # type: ignore[arg-type]  # the same calls, without HTTP


def test_one_turn_is_bounded_so_that_no_program_keeps_another_waiting(
    start: Callable[[], Speaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_relay, "MOST_BATCHES", 3)
    monkeypatch.setattr(training_relay, "BATCH_BYTES", 2_000)
    loud, quiet = start(), start()
    loud.report_steps(1, 400)
    quiet.report_steps(1, 2)
    client, relay = relay_of(loud)
    relay.drain_all()
    assert [attempt_id for attempt_id, _ in client.requested].count(loud.attempt_id) == 3
    assert 0 < len(loud.steps()) < 100
    assert quiet.steps() == [1, 2]
    while loud.steps()[-1] < 400:
        relay.drain_all()
    assert loud.steps() == list(range(1, 401))


def test_a_line_that_is_refused_is_passed_over_alone_and_counted_where_it_is_missing(
    start: Callable[[], Speaking],
) -> None:
    speaking = start()
    client, relay = relay_of(speaking)
    client.most_bytes = 4_000
    speaking.report_steps(1, 20)
    speaking.report(type="step", step=21, text="x" * 5_000)
    speaking.report_steps(22, 40)
    relay.drain_all()
    assert speaking.steps() == [step for step in range(1, 41) if step != 21]
    assert (speaking.relayed()[NUM_REFUSED], speaking.num_refused()) == (1, 1)
    assert speaking.relayed()[files.RELAYED_TRAINING] == (speaking.folder / files.TRAIN).stat().st_size


def test_what_a_server_refuses_of_a_stale_attempt_gives_its_room_back(
    start: Callable[[], Speaking], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it will ever be taken: it is asked once, all of it is counted, and none of it fills the disk."""
    monkeypatch.setattr(train_socket, "MOST_BYTES", 400_000)
    monkeypatch.setattr(train_socket, "KEPT_BYTES", 10_000)
    monkeypatch.setattr(train_socket, "REGAIN_PAUSE_NS", 0)
    speaking = start()
    client, relay = relay_of(speaking)
    speaking.write_order(speaking.fence + 1)
    for first in range(1, 2_000, 50):
        speaking.report_steps(first, first + 49, text="x" * 1_000)
        relay.drain_all()
    assert len(client.requested) == 1
    assert speaking.steps() == []
    assert speaking.relayed()[NUM_REFUSED] == 2_001, "with its hello"
    assert speaking.socket.dropped_lines == 0
    assert (speaking.folder / files.TRAIN).stat().st_blocks * 512 < 500_000


def test_a_key_that_is_being_renewed_loses_no_word(start: Callable[[], Speaking]) -> None:
    speaking = start()
    client, relay = relay_of(speaking)

    def refuse(attempt_id: AttemptId, batch: TrainBatch) -> TrainAnswer:
        raise Problem(401, "unauthenticated", "the key has expired")

    speaking.report_steps(1, 5)
    taken = client.send_training
    client.send_training = refuse  # type: ignore[method-assign]  # for a moment
    relay.drain_all()
    assert speaking.steps() == []
    client.send_training = taken  # type: ignore[method-assign]  # as it was
    relay.drain_all()
    assert speaking.steps() == [1, 2, 3, 4, 5]
    assert NUM_REFUSED not in speaking.relayed()


CHILD = """
import sys
from pathlib import Path
from muster import failpoints
from muster.db.engine import make_engine
from control.core.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import Fleet
from tests.host_case import DirectClient
from workers.host import training_relay
from workers.host.log_relay import LogRelay
failpoints.require_known()
training_relay.BATCH_BYTES = 1_000
fleet = Fleet(UnitOfWorkFactory(make_engine(sys.argv[1])), None, None, sys.argv[2])
LogRelay(Path(sys.argv[3]), DirectClient(fleet)).drain_all()
"""


def relay_in_a_process(speaking: Speaking, database_url: str, armed: str) -> int:
    """How it ended: 0, or minus the signal."""
    return subprocess.run(
        [sys.executable, "-c", CHILD, database_url, speaking.fleet.node_id, str(speaking.folder.parents[1])],
        env={**os.environ, "MUSTER_FAILPOINTS": armed, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=110,
    ).returncode


@pytest.mark.parametrize(
    "point", ["training.record.before_commit", "training.record.after_commit", training_relay.AFTER_ANSWER]
)
def test_a_relay_that_is_killed_as_it_relays_reports_everything_once(
    start: Callable[[], Speaking], database_url: str, point: str
) -> None:
    """SIGKILL, again and again: before the server has committed, after that, and before it is written down here."""
    speaking = start()
    speaking.report_steps(1, 30)
    for number in (1, 2, 2):
        assert relay_in_a_process(speaking, database_url, f"{point}=kill@{number}") == -signal.SIGKILL
        assert speaking.steps() == list(range(1, len(speaking.steps()) + 1))
    assert 0 < len(speaking.steps()) < 30
    assert relay_in_a_process(speaking, database_url, "") == 0
    assert speaking.steps() == list(range(1, 31))
    assert speaking.num_refused() == 0
    assert speaking.relayed()[files.RELAYED_TRAINING] == (speaking.folder / files.TRAIN).stat().st_size


def test_lines_about_faults_that_a_rank_prints_are_stored_once(
    start: Callable[[], Speaking], short_folder: Path
) -> None:
    speaking = start()
    peer = "n1:98:12 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error 12, opcode 129"
    (speaking.folder / files.LOGS / "0.log").write_text(f"step 1\n{peer}\n{peer}\nstep 2\n", encoding="utf-8")
    for relay in (LogRelay(short_folder, DirectClient(speaking.fleet)) for _ in range(2)):  # type: ignore[arg-type]  # the same calls, without HTTP
        relay.drain_all()
        relay.drain_all()
    with speaking.fleet.units.read() as session:
        (row,) = session.scalars(select(LineFindingRow).where(LineFindingRow.attempt_id == speaking.attempt_id))
    assert (row.pattern, row.count, row.rank, row.peer) == ("nccl.ib_retry_exceeded", 2, 0, "10.7.1.9")
