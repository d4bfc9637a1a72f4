"""An hour without the control plane and a spool too small for it, then the real API, which dies once on the way."""

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import select

from agents.spool.spool import Spool, SpoolLimits
from agents.telemetry_client import Accepted, Outcome, TelemetryClient
from agents.uplink import Uplink, UplinkConfig
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys
from local.children import Child, child_environment
from muster.db.engine import make_engine
from muster.db.models import StoredSignal, TelemetryBlock, TelemetryGap
from muster.domain.gpu.metrics import NUM_METRICS
from muster.domain.ids import GpuUuid
from muster.domain.principals import Role
from muster.ports import free_port
from muster.settings import make_secret_key_file
from muster.wire.telemetry import GpuReport, NodeReport, Report
from tests.agents.reports import BOOT
from tests.fleet_factory import OPERATOR, enrol_host
from tests.readiness import is_ready
from tests.telemetry_reports import newest_readings, report, xid
from tests.waiting import wait_until
from tests.warm_python import WarmPython

pytestmark = pytest.mark.timeout(900)
HOUR_S = 3600
SAMPLE_S = 10
SMALL = SpoolLimits(max_bytes=96 << 10, segment_bytes=8 << 10)
GPUS = ("GPU-alpha-0", "GPU-alpha-1")


@dataclass
class AgentClock:
    """Moved by hand, and an hour behind the server's when the outage begins."""

    passed_ms: int = 0
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000 - HOUR_S * 1000)

    def monotonic_ms(self) -> int:
        return self.passed_ms

    def wall_ms(self) -> int:
        return self.began_ms + self.passed_ms


@dataclass
class Watched:
    """The uplink's own sender; its reports and the server's answers."""

    client: TelemetryClient
    sent: list[tuple[Report, Outcome]] = field(default_factory=list)

    def send(self, content: bytes) -> Outcome:
        outcome = self.client.send(content)
        self.sent.append((msgspec.json.decode(content, type=Report), outcome))
        return outcome

    @property
    def acknowledged(self) -> list[Report]:
        return [found for found, outcome in self.sent if isinstance(outcome, Accepted)]


@dataclass
class Offline:
    """One agent's spool and uplink, and an API that is not there until it is started."""

    units: UnitOfWorkFactory
    api: Child
    url: str
    spool: Spool
    uplink: Uplink
    sender: Watched
    clock: AgentClock
    seq: int = 0
    samples: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def start_api(self) -> None:
        self.api.start()
        wait_until(lambda: is_ready(self.url), timeout_s=120)

    def kill_api(self) -> None:
        assert self.api.pid is not None
        os.kill(self.api.pid, signal.SIGKILL)
        wait_until(lambda: not self.api.is_running())

    def keep_sample(self) -> None:
        self.seq += 16
        chance = random.Random(self.seq)  # noqa: S311  # the same number, the same readings
        gpus = tuple(GpuReport(uuid=uuid, values=[chance.uniform(0, 1e5) for _ in range(NUM_METRICS)]) for uuid in GPUS)
        node = NodeReport(num_gpus=len(GPUS), agent_version="test")
        self.spool.append(report(self.seq, self.clock.wall_ms(), *gpus, node=node), "metrics")
        self.samples.append(self.seq)

    def keep_event(self) -> None:
        self.seq += 16
        found = xid(f"{BOOT}:{self.seq}", self.clock.wall_ms())
        self.spool.append(report(self.seq, self.clock.wall_ms(), events=(found,)), "events")
        self.events.append(found.event_id)
        self.uplink.wake(is_urgent=True)

    def turn(self) -> None:
        """Time passes as the uplink asks for it."""
        self.clock.passed_ms += round(self.uplink.turn() * 1000) + 1

    def turn_until_empty(self) -> None:
        def is_empty() -> bool:
            self.turn()
            state = self.spool.state()
            return state.num_reports == state.num_lost == 0

        wait_until(is_empty, timeout_s=400, pause_s=0)


@pytest.fixture
def offline(database_url: str, tmp_path: Path, warm_stack: WarmPython) -> Iterator[Offline]:
    engine = make_engine(database_url)
    units = UnitOfWorkFactory(engine)
    node_id = enrol_host(units, "alpha")
    with units.begin(OPERATOR, keys.CREATE) as unit:
        token = keys.create(unit, name="alpha", role=Role.NODE, node_id=node_id).token.text
    make_secret_key_file(tmp_path / "secret.key")
    port = free_port()
    variables = child_environment(database_url=database_url, secret_key_file=tmp_path / "secret.key", api_port=port)
    api = Child("api", ["api"], variables, tmp_path / "api.log", str(warm_stack.daemon))
    clock = AgentClock()
    spool = Spool(tmp_path / "spool", SMALL, monotonic_ms=clock.monotonic_ms)
    url = f"http://127.0.0.1:{port}"
    client = TelemetryClient(url, token=lambda: token)
    sender = Watched(client)
    uplink = Uplink(
        spool,
        sender,
        BOOT,
        config=UplinkConfig(history_per_s=1000),
        monotonic_ms=clock.monotonic_ms,
        wall_ms=clock.wall_ms,
        rng=random.Random(1),  # noqa: S311  # a test that repeats
    )
    yield Offline(units, api, url, spool, uplink, sender, clock)
    client.close()
    spool.close()
    api.stop()
    engine.dispose()


def _an_hour_passes(offline: Offline) -> None:
    for number in range(HOUR_S // SAMPLE_S):
        offline.keep_sample()
        if number % 30 == 29:
            offline.keep_event()
        offline.uplink.turn()
        offline.clock.passed_ms += SAMPLE_S * 1000
    assert offline.sender.acknowledged == []


def test_an_hour_offline_with_a_full_spool_loses_nothing_acknowledged_and_counts_the_rest(offline: Offline) -> None:
    _an_hour_passes(offline)
    assert offline.spool.state().num_lost > 0, "the spool was full"
    offline.start_api()
    offline.keep_sample()
    offline.keep_event()
    while len(offline.sender.acknowledged) < 20:
        offline.turn()
    offline.kill_api()
    before = len(offline.sender.sent)
    while len(offline.sender.sent) < before + 3:
        offline.turn()
    _assert_kept(offline)
    offline.start_api()
    offline.turn_until_empty()
    _assert_kept(offline)
    _assert_order(offline.sender.acknowledged, newest_sample=offline.samples[-1], newest_event=offline.events[-1])
    _assert_all_accounted_for(offline)


def _assert_kept(offline: Offline) -> None:
    """What was acknowledged is in the database, each once."""
    taken = offline.sender.acknowledged
    with offline.units.read() as session:
        blocks = [(row[0], row[1]) for row in session.execute(select(TelemetryBlock.boot_id, TelemetryBlock.seq))]
        signals = session.scalars(select(StoredSignal.signal_id).where(StoredSignal.kind == "xid")).all()
        gaps = set(session.scalars(select(TelemetryGap.report_seq)))
    assert len(blocks) == len(set(blocks))
    assert {(found.boot_id, found.seq) for found in taken if found.gpus} <= set(blocks)
    assert {event.event_id for found in taken for event in found.events} <= set(signals)
    assert {found.seq for found in taken if found.gaps} <= gaps


def _assert_order(taken: list[Report], *, newest_sample: int, newest_event: str) -> None:
    """Current state, then what happens now, then the past: its gaps, its events, node state, readings, oldest first."""
    current, live, *past = taken
    assert (current.seq, current.is_history) == (newest_sample, False)
    assert ([event.event_id for event in live.events], live.is_history) == ([newest_event], False)
    assert all(found.is_history for found in past)
    classes = [_class_of(found) for found in past]
    assert classes == sorted(classes)
    for number in range(4):
        numbers = [found.seq for found in past if _class_of(found) == number]
        assert numbers == sorted(numbers)


def _class_of(found: Report) -> int:
    if found.gaps:
        return 0
    if found.events:
        return 1
    return 3 if found.gpus else 2


def _assert_all_accounted_for(offline: Offline) -> None:
    """Every event of the hour arrived; every sample arrived or is counted; latest state is the newest."""
    with offline.units.read() as session:
        signals = session.scalars(select(StoredSignal.signal_id).where(StoredSignal.kind == "xid")).all()
        gaps = session.scalars(select(TelemetryGap)).all()
        latest = {uuid: each.reported_in.seq for uuid, each in newest_readings(session).items()}
    assert sorted(signals) == sorted(offline.events)
    assert {gap.priority for gap in gaps} <= {"metrics", "health"}
    num_counted = sum(gap.num_reports for gap in gaps if gap.priority == "metrics")
    whole = {found.seq for found in offline.sender.acknowledged if found.gpus}
    assert len(whole) + num_counted == len(offline.samples)
    assert num_counted > 0
    assert latest == dict.fromkeys((GpuUuid(uuid) for uuid in GPUS), offline.samples[-1])
