"""The uplink against a real HTTP server: current state first, events at once, refusals aside, waits as asked."""

import gzip
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from agents.spool.spool import Spool, SpoolLimits
from agents.telemetry_client import Later, TelemetryClient
from agents.tokens import NoTokenError
from agents.uplink import FAILURES_TO_SET_ASIDE, Uplink, UplinkConfig
from api.telemetry_bodies import read_report
from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA
from muster.wire.messages import WireMessage
from muster.wire.telemetry import EventReport, GapMarker, NodeReport, PortThroughput, Report
from tests import telemetry_of_0_1_0
from tests.agents.reports import BOOT, Clock, event, sample
from tests.recorded_server import Answer, Requested, problem, serving

ACCEPTED = Answer(document={"boot_id": BOOT, "seq": 0, "interval_s": 10.0})


def read(requested: Requested) -> Report:
    body = gzip.decompress(requested.body) if requested.headers.get("content-encoding") == "gzip" else requested.body
    return msgspec.json.decode(body, type=Report)


@dataclass
class Line:
    """A spool, an uplink and what its server says."""

    spool: Spool
    uplink: Uplink
    clock: Clock
    requested: list[Requested]
    answer: Callable[[Report], Answer] = lambda _report: ACCEPTED
    intervals: list[float] = field(default_factory=list)

    @property
    def seqs(self) -> list[int]:
        return [read(asked).seq for asked in self.requested]

    def keep(self, report: Report) -> None:
        if report.gpus:
            self.spool.append(report, "metrics")
        else:
            self.spool.append(report, "events" if report.events else "health")

    def turn_until_idle(self, *, limit: int = 500) -> None:
        """Time passes as the uplink asks for it."""
        for _ in range(limit):
            pause_s = self.uplink.turn()
            if self.spool.state().num_reports == 0 and self.spool.state().num_lost == 0:
                return
            self.clock.advance(pause_s + 0.001 if pause_s else 0)
        raise AssertionError(f"still {self.spool.state()}")


@contextmanager
def lines(folder: Path, config: UplinkConfig | None = None, limits: SpoolLimits | None = None) -> Iterator[Line]:
    clock = Clock()
    made: list[Line] = []
    with serving(lambda asked, _: made[0].answer(read(asked))) as server:
        spool = Spool(folder, limits, monotonic_ms=clock.monotonic_ms)
        client = TelemetryClient(server.url, token=lambda: "mst_test")
        uplink = Uplink(
            spool,
            client,
            BOOT,
            config=config,
            monotonic_ms=clock.monotonic_ms,
            wall_ms=clock.wall_ms,
            rng=random.Random(1),  # noqa: S311  # a test that repeats
        )
        line = Line(spool, uplink, clock, server.requested)
        uplink.on_interval = line.intervals.append
        made.append(line)
        yield line
        client.close()
        spool.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with lines(tmp_path) as made:
        yield made


def test_current_state_goes_first_then_events_then_history_marked_as_such(line: Line) -> None:
    for seq in range(1, 6):
        line.keep(sample(seq * 16, line.clock.wall_ms()))
        line.clock.advance(10)
    line.keep(event(6 * 16, line.clock.wall_ms()))
    line.keep(sample(7 * 16, line.clock.wall_ms()))
    line.turn_until_idle()
    sent = [(read(asked).seq // 16, read(asked).is_history) for asked in line.requested]
    assert sent == [(7, False), (6, True), (1, True), (2, True), (3, True), (4, True), (5, True)]
    assert line.intervals == [10.0]


def test_an_event_alone_goes_at_once_as_current(line: Line) -> None:
    line.keep(sample(16, line.clock.wall_ms()))
    line.uplink.turn()
    line.keep(event(32))
    line.uplink.turn()
    assert [read(asked).is_history for asked in line.requested] == [False, False]
    assert line.seqs == [16, 32]


def test_what_an_earlier_life_left_is_history(tmp_path: Path) -> None:
    clock = Clock()
    before = Spool(tmp_path, monotonic_ms=clock.monotonic_ms)
    before.append(sample(16, clock.wall_ms()), "metrics")
    before.append(event(8, clock.wall_ms(), boot_id="an-earlier-boot"), "events")
    before.close()
    with lines(tmp_path) as line:
        line.turn_until_idle()
        assert all(read(asked).is_history for asked in line.requested)
        assert sorted(line.seqs) == [8, 16]


def test_history_takes_no_more_than_its_share_of_time_and_rate(tmp_path: Path) -> None:
    with lines(tmp_path, UplinkConfig(history_per_s=5)) as line:
        for seq in range(1, 12):
            line.keep(sample(seq * 16, line.clock.wall_ms()))
        began_ms = line.clock.passed_ms
        line.turn_until_idle()
        assert line.clock.passed_ms - began_ms >= 9 * 200


def test_a_fresh_sample_overtakes_the_backlog(line: Line) -> None:
    for seq in range(1, 6):
        line.keep(sample(seq * 16, line.clock.wall_ms()))
    line.uplink.turn()
    line.uplink.turn()
    line.keep(sample(9 * 16, line.clock.wall_ms()))
    line.uplink.turn()
    assert line.seqs == [80, 16, 144]


def test_a_poison_report_is_set_aside_and_the_rest_goes_on(line: Line, tmp_path: Path) -> None:
    line.answer = lambda report: problem(422, "validation_failed") if report.seq == 48 else ACCEPTED
    for seq in range(1, 6):
        line.keep(sample(seq * 16, line.clock.wall_ms()))
    line.turn_until_idle()
    assert line.seqs.count(48) == 1, "a permanently refused report is not sent again"
    assert line.spool.state().num_refused == 1
    (kept,) = (tmp_path / "refused").glob("*.json")
    assert "validation_failed" in msgspec.json.decode(kept.read_bytes())["reason"]
    gaps = [gap for asked in line.requested for gap in read(asked).gaps]
    assert [(gap.first_seq, gap.num_reports) for gap in gaps] == [(48, 1)], "the hole is counted"


@pytest.mark.parametrize("status", [400, 409, 413, 415, 422])
def test_statuses_about_the_report_set_it_aside(line: Line, status: int) -> None:
    line.answer = lambda report: ACCEPTED if report.gaps else problem(status, "no")
    line.keep(sample(16, line.clock.wall_ms()))
    line.turn_until_idle()
    assert line.spool.state().num_refused == 1


@pytest.mark.parametrize("status", [301, 401, 403, 404, 408, 425, 426, 429, 500, 502, 503, 504])
def test_statuses_about_anything_else_lose_nothing(line: Line, status: int) -> None:
    line.keep(sample(16, line.clock.wall_ms()))
    line.answer = lambda _report: problem(status, "not_now")
    line.uplink.turn()
    assert line.uplink.turn() > 0, "it waits"
    line.answer = lambda _report: ACCEPTED
    line.turn_until_idle()
    assert line.spool.state().num_refused == 0
    assert set(line.seqs) == {16}


def test_retry_after_is_honoured_in_seconds_and_as_a_date(line: Line) -> None:
    line.keep(sample(16, line.clock.wall_ms()))
    line.answer = lambda _report: Answer(503, {}, {"Retry-After": "7"})
    line.uplink.turn()
    assert 7 <= line.uplink.turn() <= 7.3
    line.keep(event(32))
    line.uplink.wake(is_urgent=True)
    assert line.uplink.turn() > 6, "not even an event cuts short what the server asked for"
    line.clock.advance(8)
    line.answer = lambda _report: Answer(429, {}, {"Retry-After": formatdate(time.time() + 200, usegmt=True)})
    line.uplink.turn()
    assert 170 <= line.uplink.turn() <= 206
    line.clock.advance(206)
    line.answer = lambda _report: Answer(503, {}, {"Retry-After": "999999999"})
    line.uplink.turn()
    assert line.uplink.turn() <= 601, "an answer that would silence the host permanently is ignored"


def test_retries_spread_up_to_the_cap_and_an_event_cuts_them_short(line: Line) -> None:
    line.answer = lambda _report: problem(503, "unavailable")
    line.keep(sample(16, line.clock.wall_ms()))
    pauses = []
    for _ in range(40):
        line.uplink.turn()
        pause_s = line.uplink.turn()
        pauses.append(pause_s)
        line.clock.advance(pause_s)
    assert max(pauses) <= 30
    assert max(pauses[10:]) > 15
    assert min(pauses[10:]) < 10, "full jitter"
    num_before = len(line.requested)
    while line.uplink.turn() < 2:
        line.clock.advance(2)
    line.clock.advance(1.5)
    line.uplink.wake(is_urgent=True)
    line.uplink.turn()
    assert len(line.requested) > num_before


def test_a_report_on_which_the_server_alone_fails_does_not_block_for_ever(line: Line) -> None:
    line.answer = lambda report: problem(500, "internal") if report.seq == 16 else ACCEPTED
    line.keep(event(16))
    for seq in range(2, 40):
        line.keep(sample(seq * 16, line.clock.wall_ms()))
        for _ in range(6):
            line.clock.advance(line.uplink.turn() + 0.001)
    line.turn_until_idle()
    assert line.seqs.count(16) == FAILURES_TO_SET_ASIDE
    assert line.spool.state().num_refused == 1


def test_while_the_server_fails_on_everything_nothing_is_set_aside(line: Line) -> None:
    line.answer = lambda _report: problem(500, "internal")
    line.keep(event(16))
    for _ in range(30):
        line.clock.advance(line.uplink.turn())
    assert line.spool.state().num_refused == 0


def test_large_reports_go_compressed_and_small_ones_do_not(line: Line) -> None:
    line.keep(sample(16, line.clock.wall_ms(), num_gpus=72))
    line.uplink.turn()
    line.keep(event(32))
    line.uplink.turn()
    assert [asked.headers.get("content-encoding") for asked in line.requested] == ["gzip", None]
    assert len(line.requested[0].body) < 20_000
    assert len(read(line.requested[0]).gpus) == 72


def test_an_hour_offline_reaches_the_server_with_every_event_and_every_gap_counted(tmp_path: Path) -> None:
    limits = SpoolLimits(max_bytes=96 << 10, segment_bytes=8 << 10)
    config = UplinkConfig(history_per_s=1000)
    with lines(tmp_path, config, limits) as line:
        line.answer = lambda _report: problem(503, "unavailable")
        for seq in range(1, 361):
            line.keep(sample(seq * 16, line.clock.wall_ms()))
            if seq % 30 == 0:
                line.keep(event(10_000 * 16 + seq, line.clock.wall_ms()))
                line.uplink.wake(is_urgent=True)
            line.uplink.turn()
            line.clock.advance(10)
        line.answer = lambda _report: ACCEPTED
        failed = len(line.requested)
        line.keep(sample(361 * 16, line.clock.wall_ms()))
        line.turn_until_idle(limit=2000)
        taken = [read(asked) for asked in line.requested[failed:]]
        assert taken[0].seq == 361 * 16, "current state first"
        assert sum(1 for report in taken if report.events) == 12
        gaps: list[GapMarker] = [gap for report in taken for gap in report.gaps]
        whole = sum(1 for report in taken if report.gpus)
        assert whole + sum(gap.num_reports for gap in gaps if gap.priority == "metrics") == 361


def test_without_a_token_nothing_is_sent_and_nothing_lost(tmp_path: Path) -> None:
    def no_token() -> str:
        raise NoTokenError("two agents live with this identity", is_for_long=True)

    outcome = TelemetryClient("http://127.0.0.1:1", token=no_token).send(b"{}")
    assert outcome == Later("two agents live with this identity", is_for_long=True)


def test_a_token_that_the_server_does_not_take_is_spurned(tmp_path: Path) -> None:
    spurned: list[str] = []
    with serving(lambda _asked, _num: problem(401, "unauthenticated")) as server:
        client = TelemetryClient(server.url, token=lambda: "mst_old", invalidate=spurned.append)
        assert isinstance(client.send(b"{}"), Later)
        client.close()
    assert spurned == ["mst_old"]


def test_a_server_that_does_not_answer_is_waited_for(tmp_path: Path) -> None:
    client = TelemetryClient("http://127.0.0.1:1", token=lambda: "mst_x")
    assert isinstance(client.send(b"{}"), Later)
    client.close()


def test_from_event_to_acknowledged_takes_less_than_a_second(line: Line) -> None:
    stop = threading.Event()
    line.clock.passed_ms = 0
    line.uplink._monotonic_ms = lambda: time.monotonic_ns() // 1_000_000
    thread = threading.Thread(target=line.uplink.run, args=(stop,))
    thread.start()
    took = []
    for seq in range(1, 6):
        began = time.monotonic()
        line.keep(event(seq * 16))
        line.uplink.wake(is_urgent=True)
        while line.spool.state().num_reports and time.monotonic() - began < 30:
            time.sleep(0.002)
        took.append(time.monotonic() - began)
    stop.set()
    thread.join(60)
    assert sorted(took)[2] < 1, took  # not each: other processes share this machine


class OlderGpu(WireMessage, frozen=True, kw_only=True):
    uuid: str
    values: list[float | None]
    is_lost: bool = False


class OlderReport(WireMessage, frozen=True, kw_only=True):
    """What the release before the names of DCGM's metrics took."""

    protocol: int
    boot_id: str
    seq: int
    at_ms: int
    schema: int
    is_history: bool = False
    gpus: tuple[OlderGpu, ...] = ()
    node: NodeReport | None = None
    events: tuple[EventReport, ...] = ()
    gaps: tuple[GapMarker, ...] = ()


def taken_by_an_older_server(report: Report) -> Answer:
    try:
        msgspec.json.decode(msgspec.json.encode(report), type=OlderReport)
    except msgspec.ValidationError as error:
        return problem(422, code="validation_failed", detail=str(error))
    return ACCEPTED


def test_an_older_server_is_reported_what_it_takes_without_the_names_of_what_dcgm_reported(line: Line) -> None:
    line.answer = taken_by_an_older_server
    for seq in (16, 32):
        report = sample(seq, line.clock.wall_ms())
        gpus = tuple(msgspec.structs.replace(gpu, from_dcgm=("power_w",)) for gpu in report.gpus)
        line.keep(msgspec.structs.replace(report, gpus=gpus))
        line.turn_until_idle()
        line.clock.advance(10)
    sent = [read(asked) for asked in line.requested]
    assert [(each.seq, {gpu.from_dcgm for gpu in each.gpus}) for each in sent] == [
        (16, {("power_w",)}),
        (16, {()}),
        (32, {()}),
    ], "refused once, then without"
    assert sent[0].gpus[0].values == sent[1].gpus[0].values
    assert line.spool.state().num_refused == 0


class FormerGpu(OlderGpu, frozen=True, kw_only=True):
    from_dcgm: tuple[str, ...] = ()


class FormerReport(OlderReport, frozen=True, kw_only=True):
    """What release 0.1.0 takes."""

    gpus: tuple[FormerGpu, ...] = ()


def taken_by_release_0_1_0(report: Report) -> Answer:
    try:
        msgspec.json.decode(msgspec.json.encode(report), type=FormerReport)
    except msgspec.ValidationError as error:
        return problem(422, code="validation_failed", detail=str(error))
    return ACCEPTED


@pytest.mark.parametrize(
    ("takes", "num_sent", "names"), [(taken_by_release_0_1_0, 2, ("power_w",)), (taken_by_an_older_server, 2, ())]
)
def test_an_older_server_is_reported_what_it_takes_without_ages_and_late_marks(
    line: Line, takes: Callable[[Report], Answer], num_sent: int, names: tuple[str, ...]
) -> None:
    line.answer = takes
    plain = sample(16, line.clock.wall_ms())
    gpus = tuple(
        msgspec.structs.replace(gpu, is_late=True, latency_ms=2000.0, ages_s={"states": 4.0}, from_dcgm=("power_w",))
        for gpu in plain.gpus
    )
    line.keep(msgspec.structs.replace(plain, gpus=gpus, ages_s={"kernel_log": 0.5}))
    line.turn_until_idle()
    refused, *others = map(read, line.requested)
    assert refused.ages_s == {"kernel_log": 0.5}
    assert len(others) == num_sent - 1
    expected = tuple(msgspec.structs.replace(gpu, from_dcgm=names) for gpu in plain.gpus)
    assert others[-1] == msgspec.structs.replace(plain, gpus=expected), "as that release itself would report"
    assert line.spool.state().num_refused == 0
    line.keep(msgspec.structs.replace(plain, seq=32, gpus=gpus, ages_s={}))
    line.turn_until_idle()
    assert len(line.requested) == num_sent + 1, "it is not asked again for an hour"


def taken_before_ports(report: Report) -> Answer:
    """Answer as the release before byte rates: it has schema 2, and refuses a field of the host that it does not know.

    It finds the schema's fault first.
    """
    if report.schema > 2:
        return problem(426, "upgrade_required", spoken=1, schema=2)
    if report.node is not None and report.node.port_throughput is not UNSET:
        detail = "Object contains unknown field `port_throughput` - at `$.node`"
        return problem(422, code="validation_failed", detail=detail)
    return ACCEPTED


def test_a_server_that_knows_no_byte_rates_gets_all_else(line: Line) -> None:
    line.answer = taken_before_ports
    ports = (PortThroughput("mlx5_0/1", 5e9, 4e9, 400.0),)
    kept: list[Report] = []
    for seq in (16, 32):
        plain = sample(seq, line.clock.wall_ms())
        kept.append(plain)
        assert plain.node is not None
        line.keep(msgspec.structs.replace(plain, node=msgspec.structs.replace(plain.node, port_throughput=ports)))
        line.turn_until_idle()
    sent = [read(asked) for asked in line.requested]
    seen = [(each.seq, each.schema, each.node is not None and each.node.port_throughput != UNSET) for each in sent]
    assert seen == [(16, SCHEMA, True), (16, 2, True), (16, 2, False), (32, 2, False)]
    assert [gpu.values for gpu in sent[-1].gpus] == [gpu.values[:30] for gpu in kept[-1].gpus]
    assert sent[-1].node == kept[-1].node
    assert sent[-1].ages_s == kept[-1].ages_s, "only the newest group is left out"
    assert line.spool.state().num_refused == 0


def test_a_spool_that_release_0_1_0_wrote_is_sent_as_its_reports_were_written(line: Line) -> None:
    """The schema stays that of the values: the control plane reads both."""
    line.keep(msgspec.json.decode(telemetry_of_0_1_0.REPORT, type=Report))
    line.turn_until_idle()
    (sent,) = line.requested
    assert (read(sent).schema, read(sent).is_history) == (1, True)
    taken = read_report(sent.body).report
    assert (taken.schema, len(taken.gpus[0].values), taken.gpus[0].values[-1]) == (SCHEMA, NUM_METRICS, None)
    assert tuple(taken.gpus[0].values[:29]) == telemetry_of_0_1_0.VALUES


def test_a_control_plane_of_release_0_1_0_gets_the_metrics_that_it_knows(line: Line) -> None:
    """As after a host was upgraded before its control plane, or that one went back. Nothing else is left out."""

    def answer(sent: Report) -> Answer:
        return ACCEPTED if sent.schema == 1 else problem(426, "upgrade_required", spoken=1, schema=1)

    line.answer = answer
    first = sample(16, line.clock.wall_ms())
    named = msgspec.structs.replace(first.gpus[0], from_dcgm=("power_w", "tensor_active_percent"))
    line.keep(msgspec.structs.replace(first, gpus=(named, *first.gpus[1:])))
    line.turn_until_idle()
    line.keep(sample(32, line.clock.wall_ms()))
    line.turn_until_idle()
    sent = [read(asked) for asked in line.requested]
    assert [(each.seq, each.schema) for each in sent] == [(16, SCHEMA), (16, 1), (32, 1)]
    assert [gpu.values for gpu in sent[1].gpus] == [gpu.values[:29] for gpu in first.gpus]
    assert [gpu.from_dcgm for gpu in sent[1].gpus] == [("power_w",), ()]
    assert (sent[1].node, sent[1].at_ms) == (first.node, first.at_ms)


@pytest.mark.parametrize("schema", [0, 7, "1", True, None, SCHEMA])
def test_a_schema_that_this_release_cannot_write_is_waited_out(line: Line, schema: object) -> None:
    line.answer = lambda _sent: problem(426, "upgrade_required", schema=schema)
    line.keep(sample(16, line.clock.wall_ms()))
    assert line.uplink.turn() == 0.0
    assert line.uplink.turn() > 1
    assert [read(asked).schema for asked in line.requested] == [SCHEMA]
