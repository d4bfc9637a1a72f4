"""The daemon as its own process: samples, events within a second, an end on SIGTERM, a start where it stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import UNSET

from agents.pair_probes.prober import Measured, probe
from agents.probes.faults import Fault
from agents.spool.records import Found, scan
from muster.wire.pair_probes import PairProbePoll
from muster.wire.telemetry import Report
from tests.agents.test_uplink import ACCEPTED, read
from tests.recorded_server import Answer, Requested, problem, serving
from tests.waiting import wait_until

DAEMON = """
import sys
from pathlib import Path
from agents import daemon
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from muster.logs import configure_logs
from muster.settings import load_settings
settings = load_settings()
configure_logs(settings, "agent")
model = next(iter(PROFILES))
daemon.run(settings, SimulatedProbe(PROFILES[model], simulated_uuids(2), faults_path=Path(sys.argv[1])))
"""
GPU = "GPU-51300000-0000-4000-8000-000000000000"


@dataclass
class Server:
    """What agents send, with the times of receipt. ``answer`` may be changed while it runs."""

    url: str = ""
    answer: Callable[[Report], Answer] = lambda _report: ACCEPTED
    taken: list[tuple[float, Report]] = field(default_factory=list)
    probing: list[PairProbePoll] = field(default_factory=list)

    def take(self, requested: Requested, _num: int) -> Answer:
        if requested.path == "/v1/hosts/self/pair-probes/ask":
            self.probing.append(msgspec.json.decode(requested.body, type=PairProbePoll))
            return Answer(document={"address": "127.0.0.1", "keys": ["ab" * 32]})
        if requested.path != "/v1/telemetry":
            return problem(404, "not_found")
        report = read(requested)
        answer = self.answer(report)
        if answer.status == 200:
            self.taken.append((time.monotonic(), report))
        return answer

    def wait_for(self, is_it: Callable[[Report], bool], within_s: float = 60) -> tuple[float, Report]:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for at, report in tuple(self.taken):
                if is_it(report):
                    return at, report
            time.sleep(0.01)
        raise AssertionError([report for _, report in self.taken])


def every(interval_s: float) -> Callable[[Report], Answer]:
    """Accepted, and to be sampled so often."""
    return lambda report: Answer(document={"boot_id": "boot-1", "seq": report.seq, "interval_s": interval_s})


@contextmanager
def serving_agents() -> Iterator[Server]:
    made = Server()
    with serving(made.take) as recorded:
        made.url = recorded.url
        yield made


@pytest.fixture
def server() -> Iterator[Server]:
    with serving_agents() as made:
        yield made


def _start(
    server: Server, folder: Path, state_dir: Path | None = None, *, program: str = DAEMON, **more: str
) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    key_file = folder / "node.key"
    key_file.write_text("mst_test\n", encoding="ascii")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        "PYTHONPATH": str(Path.cwd()),
        "MUSTER_API_URL": server.url,
        "MUSTER_API_KEY_FILE": str(key_file),
        "MUSTER_STATE_DIR": str(state_dir or folder / "state"),
        "MUSTER_SIMULATED_BOOT_ID": "boot-1",
        **more,
    }
    command = [sys.executable, "-c", program, str(folder / "faults.json")]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@contextmanager
def agent(
    server: Server, folder: Path, state_dir: Path | None = None, *, program: str = DAEMON, **more: str
) -> Iterator[subprocess.Popen[str]]:
    """``program``: the program in it, simulated GPUs by default."""
    with _start(server, folder, state_dir, program=program, **more) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _break(folder: Path, *faults: Fault) -> None:
    draft = folder / "faults.draft"
    draft.write_bytes(msgspec.json.encode({"faults": faults}))
    draft.replace(folder / "faults.json")


def _num_kept(folder: Path, pattern: str, holding: bytes = b"") -> int:
    """Return the whole records with that content in the spool's files of that name."""
    files = (folder / "state").glob(f"agent/spool/{pattern}")
    kept = (item for path in files for item in scan(path.read_bytes()) if isinstance(item, Found))
    return sum(holding in item.record.content for item in kept)


def _has_gpus(report: Report) -> bool:
    return len(report.gpus) == 2


def test_a_sample_comes_at_once_and_sigterm_ends_the_agent_cleanly(server: Server, tmp_path: Path) -> None:
    server.answer = every(300.0)
    with agent(server, tmp_path / "a") as process:
        _, report = server.wait_for(_has_gpus)
        assert report.node is not None
        assert report.node.num_gpus == 2
        assert report.node.driver_version
        assert report.node.port_throughput is not UNSET
        assert [port.port for port in report.node.port_throughput] == ["mlx5_0/1", "mlx5_1/1"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, "it waits for nothing, least of all for its next sample after five minutes"
        assert process.stderr is not None
        log = process.stderr.read()
    assert "agent_ended" in log
    assert "Traceback" not in log


def test_a_driver_event_is_acknowledged_within_a_second_and_an_open_one_is_repeated_until_it_ends(
    server: Server, tmp_path: Path
) -> None:
    folder = tmp_path / "a"
    server.answer = every(300.0)  # no sample comes between, after which an event would be history
    with agent(server, folder):
        server.wait_for(_has_gpus)
        took_s = []
        for code in (48, 63, 92, 94, 95):
            began = time.monotonic()
            _break(folder, Fault(gpu=GPU, kind="xid", code=code))
            at, report = server.wait_for(lambda report, code=code: any(event.code == code for event in report.events))  # type: ignore[misc]  # bound at once
            took_s.append(at - began)
            assert not report.is_history
        assert sorted(took_s)[2] < 1, took_s  # not each: other processes share this machine
        server.answer = every(1.0)
        _break(folder, Fault(gpu=GPU, kind="lost"))
        server.wait_for(lambda report: _has_gpus(report) and any(event.is_open for event in report.events))
        _break(folder)
        _, found = server.wait_for(lambda report: any(event.kind == "gpu_found" for event in report.events))
        assert [(event.kind, event.is_open) for event in found.events] == [("gpu_lost", False), ("gpu_found", False)]

        def later() -> list[Report]:
            """The first of them may have been read before the end was."""
            return sorted((told for _, told in tuple(server.taken) if told.seq > found.seq), key=lambda told: told.seq)[
                1:
            ]

        wait_until(lambda: bool(later()))
        assert not any(event.is_open for told in later() for event in told.events)


def test_killed_and_started_again_it_sends_what_waited_under_growing_numbers(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    server.answer = lambda _report: problem(503, "unavailable")
    with agent(server, folder) as process:
        wait_until(lambda: _num_kept(folder, "*.seg") > 0)
        _break(folder, Fault(gpu=GPU, kind="xid", code=79))
        wait_until(lambda: _num_kept(folder, "*.events.seg", b'"xid"') > 0)
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    _break(folder)
    again = Server()  # whatever the first one still has in hand
    with serving(again.take) as recorded:
        again.url = recorded.url
        with agent(again, folder):
            _, fresh = again.wait_for(lambda report: _has_gpus(report) and not report.is_history)
            _, kept = again.wait_for(lambda report: any(event.code == 79 for event in report.events))
    assert kept.is_history
    assert kept.seq < fresh.seq


def test_states_of_gpus_and_of_the_host_come_as_events_of_their_own(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path / "a"):
        server.wait_for(lambda report: {event.kind for event in report.events} >= {"gpu_state", "host_state"})
    told = [event for _, report in server.taken for event in report.events]
    assert [event.gpu_uuid for event in told if event.kind == "gpu_state"] == [GPU, GPU[:-1] + "1"]
    (host,) = [event for event in told if event.kind == "host_state"]
    of_gpus = {"vbios_differs": 0, "persistence_differs": 0, "clocks_differ": 0}
    no_host = "GPUs that are simulated have no host beneath"
    assert (host.source, host.values) == ("host", {"found_gpus": 2, **of_gpus}), no_host
    assert not any(event.is_open for event in told)
    assert {event.kind for event in told} == {"gpu_state", "host_state"}


def test_without_a_disk_it_serves_all_the_same_and_reports_it(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path / "a", Path("/proc/no-such-place")) as process:
        server.wait_for(_has_gpus)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert "spool_cannot_write" in process.stderr.read()


def test_a_second_agent_in_the_same_folder_ends_with_a_sentence(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path / "a"):
        server.wait_for(_has_gpus)
        with agent(server, tmp_path / "a") as second:
            assert second.wait(60) != 0
            assert second.stderr is not None
            assert "another agent works in" in second.stderr.read()


def _share_of_a_core(watched: psutil.Process) -> float:
    began, before = time.monotonic(), watched.cpu_times()
    time.sleep(3)
    took_s, after = time.monotonic() - began, watched.cpu_times()
    return (after.user + after.system - before.user - before.system) / took_s


def test_an_idle_agent_costs_little(server: Server, tmp_path: Path) -> None:
    with agent(server, tmp_path / "a") as process:
        server.wait_for(_has_gpus)
        watched = psutil.Process(process.pid)
        shares = [_share_of_a_core(watched) for _ in range(3)]
        assert min(shares) < 0.03, shares  # not each: other processes share this machine
        assert watched.memory_info().rss < 150 << 20


def test_an_agent_answers_probes_where_its_settings_name_a_port_and_requests_none_without(
    server: Server, tmp_path: Path
) -> None:
    with agent(server, tmp_path / "a"):
        server.wait_for(_has_gpus)
    assert server.probing == []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        port = line.getsockname()[1]
    with agent(server, tmp_path / "b", MUSTER_PAIR_PROBE_PORT=str(port)) as process:
        until = time.monotonic() + 60
        while len(server.probing) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert [each.port for each in server.probing] == [None, port]
        measured = Measured(began_s=0.0)
        probe("127.0.0.1", port, bytes.fromhex("ab" * 32), measured, count=5)
        assert len(measured.round_trips_us) == 5
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
