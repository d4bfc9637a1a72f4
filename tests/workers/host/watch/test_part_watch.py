"""One part under watch: real programs that stand still, each with the best stack that is available."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from muster.cli.job.hang_folder import read_bundle
from muster.domain.policy.watch import KnownLimits, WatchPolicy
from muster.wire.training import AnyRankMessage
from muster.wire.training import Stalled as WireStalled
from tests.waiting import wait_until
from tests.workers.host.supervisor.attempt_case import Attempt
from watch.forensics.judge import judge_hang
from watch.phases import Phase
from watch.progress.durations import Durations
from watch.progress.tracker import Overdue, Tracker
from watch.reports import HostReport, ProcessState, RankReport, StackSource
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.watch import host_watch
from workers.host.watch.host_watch import DURATIONS, HostWatch, policy_of
from workers.host.watch.part import Part
from workers.host.watch.part_watch import Moving, PartWatch, Stalled
from workers.host.watch.processes import usage_of
from workers.host.watch.rank_reader import RankReader

SHORT = dict.fromkeys(KnownLimits.model_fields, 0.4)
POLICY = WatchPolicy(known=KnownLimits.model_validate(SHORT), quiet_s=0.4, factor=1.5, margin=1.0)
SENSOR = """
import ctypes, os, signal, sys, time, types
from muster.train.watch import sensor
from muster.train.watch.activity import ACTIVITY, declared
sensor.REPORT_EVERY_S = 0.05
sensor.Sensor(os.environ["MUSTER_WATCH_SOCKET"], types.SimpleNamespace(rank=0, world_size=1), ACTIVITY)
ACTIVITY.begin_steps(0)
ACTIVITY.end_step(1)
time.sleep(0.2)
def stands_still():
    print("here", flush=True)
    {does}
stands_still()
"""
SLEEPS = "time.sleep(600)"
HOLDS_THE_LOCK = "lock, mutex = ctypes.PyDLL(None).pthread_mutex_lock, (ctypes.c_byte * 64)(); lock(mutex); lock(mutex)"
"""A signal ends a sleep, and the program with it; the second lock of a mutex waits on."""
STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"


def part_of(attempt: Attempt) -> Part:
    part = Part.of(attempt.folder)
    assert part is not None
    return part


def found_of(attempt: Attempt, does: str) -> RankReport:
    """Start a program and return what the watch finds once it stands still."""
    attempt.start(SENSOR.format(does=does))
    attempt.wait_for_log("here")
    wait_until(lambda: '"step": 1' in (attempt.folder / "sensors" / "progress.json").read_text())
    watched = PartWatch(part_of(attempt), POLICY, Durations.of_document({"step": [0.1] * 3}))
    found = first_of(watched)
    assert isinstance(found, Stalled)
    assert watched.turn() is None
    (rank,) = found.report.ranks
    return rank


def first_of(watched: PartWatch) -> Stalled | Moving:
    found: list[Stalled | Moving] = []

    def turn() -> bool:
        found.extend(filter(None, [watched.turn()]))
        return bool(found)

    wait_until(turn)
    return found[0]


def test_a_sensor_states_the_stack_itself(attempt: Attempt) -> None:
    rank = found_of(attempt, SLEEPS)
    assert (rank.phase, rank.step, rank.stack_source) == (Phase.STEP, 1, StackSource.SENSOR_THREAD)
    assert [frame.function for frame in rank.stack] == ["stands_still", "<module>"]
    assert rank.lines == ("here",)
    (report,) = read_bundle(attempt.folder / "watch").reports
    assert report.ranks == (rank,)
    assert judge_hang([report]).sentence.startswith("Rank 0 on node_test ")


def test_a_call_into_c_that_holds_the_lock_is_seen_by_the_signal(attempt: Attempt) -> None:
    rank = found_of(attempt, HOLDS_THE_LOCK)
    assert rank.stack_source is StackSource.FAULTHANDLER
    assert [frame.function for frame in rank.stack] == ["stands_still", "<module>"]
    assert attempt.read("supervisor.json")["pid"] > 0
    assert not (attempt.folder / "exit.json").exists()


def test_a_stopped_process_is_seen_by_its_state(attempt: Attempt) -> None:
    rank = found_of(attempt, STOPS)
    assert rank.process is ProcessState.STOPPED
    assert rank.stack_source in {StackSource.KERNEL, StackSource.NONE}


def test_a_bare_command_is_watched_by_output_and_processor_time(attempt: Attempt) -> None:
    attempt.start("import time; print('here', flush=True); time.sleep(600)")
    attempt.wait_for_log("here")
    watched = PartWatch(part_of(attempt), POLICY)
    stalled = first_of(watched)
    assert isinstance(stalled, Stalled)
    (rank,) = stalled.report.ranks
    assert (rank.has_sensor, rank.process) == (False, ProcessState.SLEEPING)


def test_faults_of_the_kernels_log_and_remarks_about_it_are_part_of_the_report(attempt: Attempt) -> None:
    attempt.start("import time; print('here', flush=True); time.sleep(600)")
    attempt.wait_for_log("here")
    gpu = "GPU-0e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e"
    line, remark = f"NVRM: Xid ({gpu}): 79, GPU has fallen off the bus.", "its oldest lines were overwritten"
    part = replace(part_of(attempt), gpus=(gpu,))
    watched = PartWatch(part, POLICY, kernel=lambda: ((line,), (remark,)))
    stalled = first_of(watched)
    assert isinstance(stalled, Stalled)
    (kept,) = read_bundle(attempt.folder / "watch").reports
    assert (kept.lines, kept.notes) == ((line,), (remark,))
    verdict = judge_hang([stalled.report])
    assert (verdict.cause, verdict.ranks, verdict.gpu) == ("gpu", (0,), gpu)


@dataclass
class Clock:
    now_ns: int = 10**12

    def __call__(self) -> int:
        return self.now_ns


@pytest.mark.parametrize(
    ("program", "still_s"),
    [
        ("print('here', flush=True)\nwhile True: pass", 0.0),
        ("import time; print('here', flush=True)\nwhile True: print('x', flush=True); time.sleep(0.05)", 0.0),
        ("import time; print('here', flush=True); time.sleep(600)", 100.0),
    ],
    ids=["computes", "prints", "sleeps"],
)
def test_output_and_processor_time_are_progress_of_a_bare_command(
    attempt: Attempt, program: str, still_s: float
) -> None:
    attempt.start(program)
    attempt.wait_for_log("here")
    clock = Clock()
    reader = RankReader(part_of(attempt), WatchPolicy(quiet_s=20.0), clock)
    reader.read()
    pid, size = int(attempt.read("ranks/0.json")["pid"]), len(attempt.log())
    used_s = usage_of({pid}).cpu_s
    if still_s == 0.0:
        wait_until(lambda: usage_of({pid}).cpu_s - used_s >= 0.2 or len(attempt.log()) > size)
    clock.now_ns += (1 if still_s == 0.0 else 100) * files.NS_PER_S
    (report,) = reader.read()
    assert (report.has_sensor, report.phase, report.still_s) == (False, Phase.IMPORT, still_s)


def test_idle_gpus_do_not_hide_the_processor_time_of_a_bare_command(attempt: Attempt) -> None:
    attempt.start("print('here', flush=True)\nwhile True: pass")
    attempt.wait_for_log("here")
    clock = Clock()
    reader = RankReader(part_of(attempt), WatchPolicy(quiet_s=20.0), clock)
    pid = int(attempt.read("ranks/0.json")["pid"])
    idle = {f"gpu.GPU-{number}.utilisation": 0.0 for number in (1, 2)}
    reader.read(idle)
    used_s = usage_of({pid}).cpu_s
    wait_until(lambda: usage_of({pid}).cpu_s - used_s >= 0.2)
    clock.now_ns += files.NS_PER_S
    assert reader.read(idle)[0].still_s == 0.0


def test_a_container_of_which_nothing_is_visible_is_never_quiet(attempt: Attempt) -> None:
    """The engine's client below the supervisor sleeps, whatever the program does."""
    attempt.start("import time; print('here', flush=True); time.sleep(600)")
    attempt.wait_for_log("here")
    for is_hidden, still_s in ((True, 0.0), (False, 1000.0)):
        clock = Clock()
        part = replace(part_of(attempt), is_hidden=is_hidden)
        reader = RankReader(part, WatchPolicy(), clock)
        reader.read()
        clock.now_ns += 1000 * files.NS_PER_S
        assert reader.read()[0].still_s == still_s


def test_a_loader_that_computes_is_measured_apart_from_its_rank(attempt: Attempt) -> None:
    child = "[sys.executable, '-c', 'while True: pass']"
    attempt.start(f"import subprocess, sys, time\nprint(subprocess.Popen({child}).pid, flush=True); time.sleep(600)")
    wait_until(lambda: attempt.log().strip().isdigit())
    child_pid = int(attempt.log())
    clock = Clock()
    reader = RankReader(part_of(attempt), WatchPolicy(quiet_s=20.0), clock)
    reader.read()
    used_s = usage_of({child_pid}).cpu_s
    wait_until(lambda: usage_of({child_pid}).cpu_s - used_s >= 0.2)
    clock.now_ns += files.NS_PER_S
    (report,) = reader.read()
    assert report.children_cpu_share is not None
    assert report.cpu_share is not None
    assert report.children_cpu_share >= 0.2 > report.cpu_share


def test_a_number_that_is_no_process_of_the_attempt_is_not_inspected(attempt: Attempt) -> None:
    """A program may write any number, also that of a process of another tenant."""
    attempt.start("import time; print('here', flush=True); time.sleep(600)")
    attempt.wait_for_log("here")
    reader = RankReader(part_of(attempt), WatchPolicy())
    own = reader.pid_of(0)
    assert own == int(attempt.read("ranks/0.json")["pid"])
    for number in (1, os.getpid(), attempt.supervisor_pid()):
        (attempt.folder / "ranks" / "0.json").write_text(json.dumps({"pid": number}))
        assert reader.pid_of(0) is None
        (report,) = reader.read()
        assert report.process is ProcessState.UNKNOWN


def test_what_a_program_states_of_its_progress_may_be_anything(attempt: Attempt) -> None:
    attempt.order(command=["true"])
    (attempt.folder / "sensors").mkdir()
    stated: list[object] = [[], {"0": 3}, {"0": {"phase": ["step"], "step": -1, "ticks": "9", "changed_ns": True}}]
    for ranks in stated:
        (attempt.folder / "sensors" / "progress.json").write_text(json.dumps({"ranks": ranks}))
        (report,) = RankReader(part_of(attempt), WatchPolicy()).read()
        assert (report.has_sensor, report.step, report.ticks) == (False, 0, 0)


def test_a_phase_that_this_release_does_not_know_counts_as_a_step(attempt: Attempt) -> None:
    attempt.order(command=["true"])
    (attempt.folder / "sensors").mkdir()
    clock = Clock()
    stated = {"phase": "warmup", "step": 3, "changed_ns": clock.now_ns - files.NS_PER_S}
    (attempt.folder / "sensors" / "progress.json").write_text(json.dumps({"ranks": {"0": stated}}))
    (report,) = RankReader(part_of(attempt), WatchPolicy(), clock).read()
    assert (report.has_sensor, report.phase, report.step, report.still_s) == (True, Phase.STEP, 3, 1.0)


def test_a_report_that_failed_is_made_again_and_a_sent_one_each_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = PartWatch(Part(tmp_path, "node_test", (0,)), POLICY)
    still_s = iter([30.0, 31.0, 32.0, 90.0, 91.0])
    monkeypatch.setattr(RankReader, "read", lambda *_: (RankReport(0, Phase.STEP),))
    monkeypatch.setattr(Tracker, "take", lambda *_: Overdue(Phase.STEP, 3, 30.0, next(still_s), (0,)))
    results: Iterator[HostReport | None] = iter([None, HostReport("node_test", 1, ()), HostReport("node_test", 2, ())])

    def collect(*_: object) -> HostReport:
        if (report := next(results)) is None:
            raise OSError(28, "No space left on device")
        return report

    monkeypatch.setattr(PartWatch, "_collect", collect)
    with pytest.raises(OSError, match="No space"):
        watched.turn()
    found = [watched.turn() for _ in range(4)]
    sent = [each.report.at_ms if isinstance(each, Stalled) else None for each in found]
    assert sent == [1, None, None, 1], "the stacks of a repetition would be the same"


def test_an_attempt_that_cannot_be_read_leaves_the_others_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "attempts" / name for name in ("att_1", "att_2", "att_3")]
    for path in paths:
        path.mkdir(parents=True)
        (path / files.IDENTITY).touch()
    monkeypatch.setattr(supervisor, "adopt", lambda _path: SimpleNamespace(state="running"))
    seen: list[Path] = []

    def watch_one(_watch: HostWatch, path: Path) -> None:
        seen.append(path)
        raise KeyError(0)

    monkeypatch.setattr(HostWatch, "_watch", watch_one)
    HostWatch(tmp_path).turn()
    assert sorted(seen) == paths


def test_the_control_plane_gets_a_message_once_and_another_when_it_moves(attempt: Attempt, tmp_path: Path) -> None:
    go_on = attempt.folder / "go_on"
    waits = f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)"
    does = f"{waits}\n    while True: ACTIVITY.tick(); time.sleep(0.01)"
    attempt.start(SENSOR.format(does=does), watch=POLICY.model_dump(mode="json"))
    attempt.wait_for_log("here")
    (attempt.folder / DURATIONS).write_text('{"step": [0.1, 0.1, 0.1]}')
    watch = HostWatch(tmp_path)

    def messages() -> list[dict[str, object]]:
        watch.turn()
        lines = (attempt.folder / "train.jsonl").read_text().splitlines()
        return [said["message"] for said in map(json.loads, lines) if said["message"].get("type") == "stalled"]

    wait_until(lambda: len(messages()) == 1)
    go_on.touch()
    wait_until(lambda: len(messages()) >= 2)
    stalled, over = messages()[:2]
    assert (stalled["phase"], stalled["step"], stalled["node"]) == ("step", 1, "node_test")
    assert (over["is_over"], over["node"]) == (True, "node_test")
    for message in (stalled, over):
        assert isinstance(msgspec.convert(message, AnyRankMessage), WireStalled)


def test_an_order_of_an_older_or_newer_server_means_the_built_in_policy(tmp_path: Path) -> None:
    assert policy_of(tmp_path) == WatchPolicy()
    for said in (None, {"from_the_future": 1}):
        (tmp_path / "order.json").write_text(json.dumps({"watch": said}))
        assert policy_of(tmp_path) == WatchPolicy()
    (tmp_path / "order.json").write_text(json.dumps({"watch": {"is_on": False}}))
    assert not policy_of(tmp_path).is_on


def test_an_attempt_whose_turn_does_not_end_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = (tmp_path / "attempts" / name for name in ("att_1", "att_2"))
    for path in (slow, fast):
        path.mkdir(parents=True)
        (path / files.IDENTITY).touch()
    monkeypatch.setattr(supervisor, "adopt", lambda _path: SimpleNamespace(state="running"))
    monkeypatch.setattr(host_watch, "TURN_S", 0.01)
    seen: list[Path] = []
    may_end = threading.Event()

    def watch_one(_watch: HostWatch, path: Path) -> None:
        seen.append(path)
        if path == slow:
            may_end.wait()

    monkeypatch.setattr(HostWatch, "_watch", watch_one)
    watch = HostWatch(tmp_path)

    def has_seen(path: Path, times: int) -> bool:
        watch.turn()
        return seen.count(path) >= times

    wait_until(lambda: has_seen(fast, 3))
    assert seen.count(slow) == 1, "its turn still lasts"
    may_end.set()
    wait_until(lambda: has_seen(slow, 2))
