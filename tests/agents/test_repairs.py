"""The agent's repairs: closed verbs by real programs, reported once, also after a kill."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from agents.probes.faults import Fault, read_faults, write_fault
from agents.probes.profiles import PROFILES
from agents.probes.simulated import SimulatedProbe, simulated_uuids
from agents.repairs.actions import AllowedRepairs, Commands, Hands, HandsError, HostHands
from agents.repairs.journal import Given, Journal
from agents.repairs.simulated import SimulatedHands
from agents.repairs.worker import AWAY_S, RepairWorker
from muster.client.transport import Problem, UnreachableError
from muster.domain.evidence.repairs import RepairVerb
from muster.wire.repair import RepairAnswer, RepairOrder, RepairPoll, RepairPollAnswer, RepairReport
from tests.waiting import wait_until

ONE, TWO = simulated_uuids(2)
TAKEN = RepairAnswer(is_taken=True)


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


@dataclass
class PlayedServer:
    """Gives its orders in turn; answers reports with what a test says."""

    orders: list[RepairOrder] = field(default_factory=list)
    answers: list[RepairAnswer | Exception] = field(default_factory=list)
    reports: list[RepairReport] = field(default_factory=list)
    num_requested: int = 0
    waiting: list[tuple[str, ...]] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def poll(self, request: RepairPoll) -> RepairPollAnswer:
        self.num_requested += 1
        self.waiting.append(request.waiting)
        return RepairPollAnswer(order=self.orders.pop(0) if self.orders else None, poll_again_s=7.0)

    def report(self, repair_id: str, report: RepairReport) -> RepairAnswer:
        self.reports.append(report)
        self.reported.append(repair_id)
        answer = self.answers.pop(0) if self.answers else TAKEN
        if isinstance(answer, Exception):
            raise answer
        return answer


def ordered(verb: str, gpu: str = ONE, repair_id: str = "rep_1") -> RepairOrder:
    return RepairOrder(repair_id=repair_id, gpu_uuid=gpu, verb=verb, deadline_s=60.0)


def worker(
    server: PlayedServer,
    hands: Hands,
    tmp_path: Path,
    *,
    boot_id: str = "boot-1",
    allowed: str = "all",
    busy: tuple[str, ...] = (),
    now_s: Callable[[], float] = lambda: 0.0,
) -> RepairWorker:
    return RepairWorker(
        server,
        SimulatedProbe(PROFILES["h100"], [ONE, TWO], activity=lambda uuid: 1.0 if uuid in busy else 0.0),
        AllowedRepairs(hands, frozenset(RepairVerb) if allowed == "all" else frozenset()),
        Journal(tmp_path / "repair.json"),
        boot_id,
        rng=random.Random(1),  # noqa: S311  # jitter, no secret
        now_s=now_s,
    )


def carried_out(hands: Hands, verb: str, tmp_path: Path, *, allowed: str = "all") -> RepairReport:
    server = PlayedServer([ordered(verb)])
    made = worker(server, hands, tmp_path, allowed=allowed)
    stop = threading.Event()
    made.turn(stop)
    made.turn(stop)
    return server.reports[-1]


def host_hands(tmp_path: Path) -> HostHands:
    return HostHands(commands=Commands(path=str(tmp_path / "bin")))


def test_a_reset_is_one_program_with_fixed_words_and_its_output_is_reported(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", f'echo "$*" > {tmp_path}/words; echo "GPU was\tsuccessfully reset."')
    told = carried_out(host_hands(tmp_path), "gpu_reset", tmp_path)
    assert (told.outcome, told.text) == (
        "done",
        f"nvidia-smi --gpu-reset -i {ONE}: GPU was successfully reset.",
    )
    assert (tmp_path / "words").read_text(encoding="utf-8") == f"--gpu-reset -i {ONE}\n"


def test_a_program_that_fails_or_is_not_there_fails_the_repair_with_its_words(tmp_path: Path) -> None:
    told = carried_out(host_hands(tmp_path), "gpu_reset", tmp_path)
    assert (told.outcome, told.text) == ("failed", "nvidia-smi is not on this host")
    program(
        tmp_path / "bin", "nvidia-smi", "head -c 100000 /dev/zero | tr '\\0' x; echo in use by another client; exit 3"
    )
    told = carried_out(host_hands(tmp_path), "gpu_reset", tmp_path)
    assert told.text.startswith(f"nvidia-smi --gpu-reset -i {ONE} ended with 3: x")
    assert told.text.endswith("in use by another client")
    assert len(told.text) < 800, "only the end of its output"


def test_a_program_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    program(tmp_path / "bin", "slow", f"sleep 60 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(HandsError, match=r"slow did not end within 0\.5 s"):
        Commands(path=str(tmp_path / "bin") + ":/usr/bin:/bin").run(("slow",), 0.5, threading.Event())
    child = int((tmp_path / "child").read_text(encoding="utf-8"))
    state = Path(f"/proc/{child}/stat")

    def has_ended() -> bool:
        """It is killed at once, and ends a moment later: its new parent has to reap it."""
        try:
            return state.read_text(encoding="utf-8").rpartition(")")[2].split()[0] in {"Z", "X"}
        except FileNotFoundError:
            return True

    wait_until(has_ended, timeout_s=30)


def test_a_driver_reload_lets_go_of_the_driver_first_and_takes_it_up_again(tmp_path: Path) -> None:
    said: list[str] = []

    @contextmanager
    def released() -> Iterator[None]:
        said.append("released")
        yield
        said.append((tmp_path / "steps").read_text(encoding="utf-8"))

    program(tmp_path / "bin", "modprobe", f'echo "$*" >> {tmp_path}/steps')
    modules = ["nvidia_uvm", "nvidia_modeset", "nvidia"]
    (tmp_path / "modules").write_text("".join(f"{each} 1 0 - Live 0x0\n" for each in (*modules, "ext4")))
    hands = HostHands(released, Commands(path=str(tmp_path / "bin")), tmp_path / "modules")
    assert carried_out(hands, "driver_reload", tmp_path).outcome == "done"
    assert said == ["released", "\n".join([f"-r {' '.join(modules)}", *reversed(modules), ""])]


def test_a_driver_that_is_on_hold_by_another_is_loaded_again_whole(tmp_path: Path) -> None:
    program(tmp_path / "bin", "modprobe", f'echo "$*" >> {tmp_path}/steps; test "$1" != -r')
    (tmp_path / "modules").write_text("nvidia_uvm 1 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n")
    hands = HostHands(commands=Commands(path=str(tmp_path / "bin")), modules=tmp_path / "modules")
    told = carried_out(hands, "driver_reload", tmp_path)
    assert (told.outcome, told.text) == ("failed", "modprobe -r nvidia_uvm nvidia ended with 1")
    assert (tmp_path / "steps").read_text().splitlines() == ["-r nvidia_uvm nvidia", "nvidia", "nvidia_uvm"]


def test_a_host_does_only_what_its_settings_allow(tmp_path: Path) -> None:
    told = carried_out(host_hands(tmp_path), "reboot", tmp_path, allowed="none")
    assert (told.outcome, told.text) == ("failed", "this host does not allow reboot; its MUSTER_REPAIR_VERBS: none")
    told = carried_out(host_hands(tmp_path), "erase", tmp_path)
    assert told.text.startswith("this host does not allow erase")


@pytest.mark.parametrize(("verb", "is_refused"), [("gpu_reset", False), ("reboot", True)])
def test_programs_that_compute_keep_a_verb_from_what_it_touches(tmp_path: Path, verb: str, *, is_refused: bool) -> None:
    program(tmp_path / "bin", "nvidia-smi", "exit 0")
    server = PlayedServer([ordered(verb)])
    made = worker(server, host_hands(tmp_path), tmp_path, busy=(TWO,))
    made.turn(threading.Event())
    made.turn(threading.Event())
    assert server.reports[0].outcome == ("failed" if is_refused else "done")
    assert (f"processes compute on {TWO}" in server.reports[0].text) is is_refused


def test_a_reboot_is_done_when_the_agent_comes_back_in_another_boot(tmp_path: Path) -> None:
    program(tmp_path / "bin", "systemctl", "exit 0")
    server = PlayedServer([ordered("reboot")])
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    worker(server, host_hands(tmp_path), tmp_path).turn(stop)
    assert not server.reports, "it says nothing before it went down"
    worker(server, host_hands(tmp_path), tmp_path, boot_id="boot-2").turn(threading.Event())
    (told,) = server.reports
    assert (told.outcome, told.boot_id, told.text) == ("done", "boot-2", "the host came back in another boot")


@pytest.mark.parametrize(("verb", "boot_id"), [("gpu_reset", "boot-1"), ("gpu_reset", "boot-2"), ("reboot", "boot-1")])
def test_what_a_kill_cut_short_was_interrupted_and_is_reported_before_anything_is_queried(
    tmp_path: Path, verb: str, boot_id: str
) -> None:
    journal = Journal(tmp_path / "repair.json")
    journal.write(Given(repair_id="rep_1", gpu_uuid=ONE, verb=verb, boot_id="boot-1"))
    server = PlayedServer()
    made = worker(server, host_hands(tmp_path), tmp_path, boot_id=boot_id)
    made.turn(threading.Event())
    assert (server.reports[0].outcome, server.num_requested) == ("failed", 0)
    assert server.reports[0].text == f"the {verb} was interrupted: the agent ended during it"
    assert made.turn(threading.Event()) == 7.0
    assert server.num_requested == 1


def test_a_report_goes_out_until_the_server_takes_it_or_has_no_use_for_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "repair.json")
    journal.write(Given(repair_id="rep_1", gpu_uuid=ONE, verb="gpu_reset", boot_id="boot-1", outcome="done"))
    away = UnreachableError("no answer")
    waits = RepairAnswer(is_taken=False, again_s=3.0)
    server = PlayedServer(answers=[away, waits, RepairAnswer(is_taken=False)])
    time_s = [100.0]
    made = worker(server, host_hands(tmp_path), tmp_path, now_s=lambda: time_s[0])
    assert [made.turn(threading.Event()) for _ in range(2)] == [AWAY_S, 0.0]
    assert made.turn(threading.Event()) == 3.0, "it asks for others until then"
    time_s[0] += 3.0
    assert [made.turn(threading.Event()) for _ in range(2)] == [0.0, 7.0]
    assert [each.outcome for each in server.reports] == ["done", "done", "done"]
    assert server.waiting == [("rep_1",), ()]


def test_a_repair_that_waits_for_its_fault_to_end_holds_up_no_other_gpus(tmp_path: Path) -> None:
    waits = RepairAnswer(is_taken=False, again_s=30.0)
    server = PlayedServer([ordered("gpu_reset"), ordered("gpu_reset", TWO, "rep_2")], answers=[waits])
    hands = SimulatedHands(frozenset({ONE, TWO}), tmp_path / "faults.json")
    made = worker(server, hands, tmp_path)
    for _ in range(4):
        made.turn(threading.Event())
    assert server.reported == ["rep_1", "rep_2"]
    assert [each.repair_id for each in Journal(tmp_path / "repair.json").read()] == ["rep_1"]
    again = worker(server, hands, tmp_path)
    again.turn(threading.Event())
    assert server.reported == ["rep_1", "rep_2", "rep_1"], "the agent's next process reports it first"
    assert Journal(tmp_path / "repair.json").read() == ()


def test_an_order_that_an_older_release_was_given_is_reported(tmp_path: Path) -> None:
    given = Given(repair_id="rep_1", gpu_uuid=ONE, verb="gpu_reset", boot_id="boot-1")
    (tmp_path / "repair.json").write_bytes(msgspec.json.encode(given))
    server = PlayedServer()
    worker(server, host_hands(tmp_path), tmp_path).turn(threading.Event())
    assert server.reported == ["rep_1"]


def test_a_simulated_reset_mends_what_a_reset_mends_on_its_gpu_alone(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    for gpu, kind, code in ((ONE, "xid", 95), (ONE, "slow", None), (TWO, "xid", 95), (TWO, "xid", 79)):
        write_fault(faults, Fault(gpu=gpu, kind=kind, code=code))  # type: ignore[arg-type]  # one of its kinds each
    hands = SimulatedHands(frozenset({ONE, TWO}), faults)
    told = carried_out(hands, "gpu_reset", tmp_path)
    assert (told.outcome, told.text, told.is_simulated) == (
        "done",
        "simulated reset: 1 simulated faults were removed",
        True,
    )
    assert [(each.gpu, each.kind) for each in read_faults(faults)] == [(ONE, "slow"), (TWO, "xid"), (TWO, "xid")]
    assert carried_out(hands, "diagnosis", tmp_path).text == "simulated diagnosis: slow"
    assert carried_out(hands, "reboot", tmp_path).outcome == "done"
    assert [each.kind for each in read_faults(faults)] == ["slow"], "a reboot fixes every GPU, and finds a lost one"


def test_a_simulated_gpu_that_is_lost_is_reached_by_a_reboot_alone(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    write_fault(faults, Fault(gpu=ONE, kind="lost"))
    hands = SimulatedHands(frozenset({ONE, TWO}), faults)
    told = carried_out(hands, "gpu_reset", tmp_path)
    assert (told.outcome, told.text) == ("failed", f"{ONE} is lost: no reset reaches it (simulated)")
    assert carried_out(hands, "reboot", tmp_path).outcome == "done"
    assert read_faults(faults) == ()


def test_a_refused_report_is_kept_no_longer(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "repair.json")
    journal.write(Given(repair_id="rep_1", gpu_uuid=ONE, verb="gpu_reset", boot_id="boot-1", outcome="done"))
    gone = Problem(404, "not_found", "no such repair")
    made = worker(PlayedServer(answers=[gone]), host_hands(tmp_path), tmp_path)
    made.turn(threading.Event())
    assert journal.read() == ()
