"""The process that computes: its output is read, and however it ends, the agent continues and states the cause."""

import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agents.burn_in.bench_process import Bench, Measured
from agents.probes.interface import ComputeDevice
from muster.domain.ids import GpuUuid

ONE, TWO = GpuUuid("GPU-one"), GpuUuid("GPU-two")
LINE = '{"gpu": "GPU-one", "library": "x", "took_s": 1.0}'


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """A program in an interpreter's place."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\ncat > /dev/null\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def run(python: str, *uuids: GpuUuid, deadline_s: float = 100, stop: threading.Event | None = None) -> list[Measured]:
    found: list[Measured] = []
    devices = {uuid: ComputeDevice("cpu") for uuid in uuids or (ONE, TWO)}
    Bench(python).run(devices, deadline_s, stop or threading.Event(), found.append)
    return found


def faults(found: list[Measured]) -> dict[str, str | None]:
    return {each.gpu: each.fault for each in found}


@pytest.mark.timeout(400)
def test_simulated_gpus_of_a_host_share_one_process_and_one_of_them_computes_wrong() -> None:
    found: list[Measured] = []
    devices = {ONE: ComputeDevice("cpu"), TWO: ComputeDevice("cpu", is_wrong=True)}
    Bench(sys.executable).run(devices, 300, threading.Event(), found.append)
    assert [each.gpu for each in found] == [ONE, TWO]
    assert faults(found) == {ONE: None, TWO: None}
    wrong = [any(golden != measured for _, golden, measured in each.partial_sums) for each in found]
    assert wrong == [False, True]
    assert "torch" in found[0].library


def test_an_interpreter_without_torch_is_stated_of_every_gpu(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    path.chmod(0o755)
    found = run(str(path))
    assert set(faults(found)) == {ONE, TWO}
    assert all("torch cannot be imported" in (each.fault or "") for each in found)


def test_no_interpreter_at_all_is_stated() -> None:
    found = run("/nowhere/python")
    assert "cannot be started" in (found[0].fault or "")


def test_a_crash_leaves_what_was_done_and_names_the_signal(interpreter: Callable[[str], str]) -> None:
    found = run(interpreter(f"echo '{LINE}'; echo 'CUDA error: an illegal memory access' >&2; kill -SEGV $$"))
    assert faults(found) == {
        ONE: None,
        TWO: "its process ended by signal 11: CUDA error: an illegal memory access",
    }


def test_a_hang_is_killed_at_its_deadline_with_all_that_it_started(interpreter: Callable[[str], str]) -> None:
    began = time.monotonic()
    found = run(interpreter(f"echo '{LINE}'; sleep 1000 & wait"), deadline_s=5)
    assert faults(found) == {ONE: None, TWO: "it did not end within 5 s"}
    assert time.monotonic() - began < 60


def test_an_agent_that_is_to_end_waits_for_no_burn_in(interpreter: Callable[[str], str]) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    began = time.monotonic()
    found = run(interpreter("sleep 1000"), stop=stop)
    assert {each.fault for each in found} == {"the agent was asked to end"}
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo hello", "cannot be read"),
        ("head -c 2000000 /dev/zero | tr '\\0' a", "its output is longer than any burn-in's"),
        ("exit 0", "exit code 0"),
        ('echo \'{"gpu": "GPU-three"}\'', "exit code 0"),
    ],
)
def test_what_is_no_line_of_a_burn_in_proves_nothing(
    interpreter: Callable[[str], str], script: str, words: str
) -> None:
    found = run(interpreter(script))
    assert set(faults(found)) == {ONE, TWO}
    assert all(words in (each.fault or "") for each in found)


def test_a_real_gpu_has_a_process_that_sees_it_alone_and_no_setting_of_ours(
    interpreter: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_API_KEY", "mst_secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    found: list[Measured] = []
    python = interpreter('echo "sees $CUDA_VISIBLE_DEVICES, holds ${MUSTER_API_KEY:-nothing}" >&2; exit 3')
    Bench(python).run({ONE: ComputeDevice("cuda")}, 60, threading.Event(), found.append)
    assert faults(found) == {ONE: "its process ended with exit code 3: sees GPU-one, holds nothing"}
    with pytest.raises(ValueError, match="one real GPU"):
        Bench(python).run(dict.fromkeys((ONE, TWO), ComputeDevice("cuda")), 60, threading.Event(), found.append)


def test_nothing_is_left_open() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run("/bin/true")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
