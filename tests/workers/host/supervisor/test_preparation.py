"""What a host sees to before it says that it is ready, and that its program waits for the go."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tests.workers.host.supervisor.attempt_case import Attempt, until
from workers.host import supervisor
from workers.host.supervisor import files, preparation
from workers.host.supervisor.gpu_check import Nvml, NvmlError, computing_processes, minors, what_is_wrong
from workers.host.supervisor.order import Order
from workers.host.supervisor.preparation import UnreadyError, require_room

MARK = "open('{}', 'x').close()"
PREPARED: dict[str, Any] = {"disk_free_bytes": 1}
NO_SUCH_GPU, NEEDS_ROOM = 6, 7


def record_of(attempt: Attempt) -> dict[str, Any]:
    until((attempt.folder / files.EXIT).exists, "the exit record")
    return files.read_json(attempt.folder / files.EXIT) or {}


def test_a_program_that_is_ready_waits_for_its_go(attempt: Attempt, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    attempt.start(MARK.format(mark), preparation=PREPARED)
    until((attempt.folder / files.READY).exists, "ready")
    ready = files.read_json(attempt.folder / files.READY)
    assert ready == {"looked_at": ["working folder", "disk"]}
    assert supervisor.adopt(attempt.folder).state == "running"
    assert not mark.exists()
    attempt.write(files.GO, {})
    supervisor.wake(attempt.folder)
    assert record_of(attempt)["launcher_exit_code"] == 0
    assert mark.exists()


def test_a_stop_finds_it_while_it_waits(attempt: Attempt, tmp_path: Path) -> None:
    attempt.start(MARK.format(tmp_path / "mark"), preparation=PREPARED)
    until((attempt.folder / files.READY).exists, "ready")
    attempt.write(files.STOP, {"reason": "preflight_failed", "grace_until_boottime_ns": 0})
    supervisor.wake(attempt.folder)
    record = record_of(attempt)
    assert (record["spawn_fault"], record["stop_reason"]) == ("refused", "preflight_failed")
    attempt.write(files.GO, {})
    until(lambda: (files.read_json(attempt.folder / files.CLEAN) or {}).get("clean") is True, "the proof")
    assert not (tmp_path / "mark").exists()


def test_a_driver_is_not_requested_about_simulated_gpus(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine with GPUs of its own, on which a fleet is simulated."""
    monkeypatch.setattr(preparation, "has_nvidia", lambda: True)
    attempt.start("pass", gpus=["GPU-simulated"], preparation={**PREPARED, "is_simulated": True})
    order = Order(files.read_json(attempt.folder / files.ORDER) or {})
    assert order.preparation is not None
    assert preparation.check_host(order, attempt.folder, order.preparation) == ["disk"]


@pytest.mark.parametrize(
    ("fields", "fault", "words", "lacks"),
    [
        ({"preparation": {"disk_free_bytes": 1 << 60}}, "preflight", "GiB free", None),
        ({"preparation": PREPARED, "working_dir": "/no/such/folder"}, "program", "/no/such/folder", "working folder"),
        ({"preparation": PREPARED, "launcher": "torchrun", "script": "none.py"}, "program", "none.py", "program"),
        ({"launcher": "torchrun", "script": __file__, "python": "/no/python"}, "program", "/no/python", "interpreter"),
        ({"venv": "/no/venv"}, "program", "/no/venv is no virtual environment", "environment"),
        ({"container": {"image": "gpt", "engine": "docker"}}, "host", "no container engine", "container engine"),
        ({"preparation": PREPARED, "secrets": {"names": ["token"]}}, "preflight", "keeps no secrets", "secrets"),
        ({"secrets": {"names": ["token"], "source": "/nowhere"}}, "program", "the secret token is not", "secret"),
    ],
)
def test_what_is_missing_is_stated_before_anything_starts(
    attempt: Attempt,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    fault: str,
    words: str,
    lacks: str | None,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    attempt.start(MARK.format(tmp_path / "mark"), **fields)
    record = record_of(attempt)
    assert (record["spawn_fault"], record["lacks"]) == (fault, lacks)
    assert words in record["spawn_error"]
    assert not (attempt.folder / files.READY).exists()
    assert not (tmp_path / "mark").exists()


def test_room_is_searched_where_the_folder_will_be(tmp_path: Path) -> None:
    require_room(tmp_path / "not" / "made" / "yet", 1)
    with pytest.raises(UnreadyError, match=f"{tmp_path} has .* GiB free"):
        require_room(tmp_path / "not" / "made" / "yet", 1 << 60)


class _Call:
    """A function of the driver's library: what ``ctypes`` sets on it, and what it answers."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.restype: Any = None

    def __call__(self, *arguments: Any) -> Any:
        return self._answer(*arguments)


class Driver:
    """The driver's library as ``gpu_check`` calls it: ``checks`` gives the processes on each GPU, check by check."""

    def __init__(self, *checks: dict[str, list[int]]) -> None:
        self._checks = list(checks)
        self._requested = 0
        self._uuid = ""
        self.nvmlErrorString = _Call(lambda code: b"Not Found" if code == NO_SUCH_GPU else b"Unknown")
        self.nvmlInit_v2 = _Call(lambda: 0)
        self.nvmlDeviceGetHandleByUUID = _Call(self._find)
        self.nvmlDeviceGetComputeRunningProcesses_v3 = _Call(self._list)
        self.nvmlDeviceGetMinorNumber = _Call(self._number)

    def _find(self, uuid: bytes, _device: Any) -> int:
        self._uuid = uuid.decode()
        return 0 if self._uuid in self._checks[0] else NO_SUCH_GPU

    def _number(self, _device: Any, minor: Any) -> int:
        """Of GPU-3 it is 3."""
        ctypes.cast(minor, ctypes.POINTER(ctypes.c_uint)).contents.value = int(self._uuid.removeprefix("GPU-"))
        return 0

    def _list(self, _device: Any, count: Any, processes: Any) -> int:
        pids = self._checks[min(self._requested, len(self._checks) - 1)][self._uuid]
        self._requested += 1
        counter = ctypes.cast(count, ctypes.POINTER(ctypes.c_uint)).contents
        for index, pid in enumerate(pids[: counter.value]):
            processes[index].pid = pid
        is_short = len(pids) > counter.value
        counter.value = len(pids)
        return NEEDS_ROOM if is_short else 0


def nvml(*checks: dict[str, list[int]]) -> Nvml:
    return Nvml(Driver(*checks))  # type: ignore[arg-type]  # it plays the library


def test_gpus_that_are_there_and_free_are_fine() -> None:
    assert what_is_wrong(nvml({"GPU-1": [], "GPU-2": []}), ["GPU-1", "GPU-2"], pause_s=0) is None


def test_a_gpu_on_which_another_computes_is_named_with_the_process() -> None:
    wrong = what_is_wrong(nvml({"GPU-1": [12, 7]}), ["GPU-1"], pause_s=0)
    assert wrong == "GPU-1 is not free: process 7, 12 computes on it"


def test_more_processes_than_are_requested_are_no_fault_of_the_drivers() -> None:
    wrong = what_is_wrong(nvml({"GPU-1": list(range(1, 100))}), ["GPU-1"], checks=1)
    assert wrong is not None
    assert "is not free" in wrong


def test_a_process_that_is_on_its_way_out_is_waited_for() -> None:
    assert what_is_wrong(nvml({"GPU-1": [12]}, {"GPU-1": []}), ["GPU-1"], pause_s=0) is None


def test_a_gpu_that_is_missing_is_named() -> None:
    assert what_is_wrong(nvml({"GPU-1": []}), ["GPU-9"]) == "GPU-9 is not there: Not Found"


def test_what_computes_is_notified_of_each_gpu_that_is_on_hold() -> None:
    found = computing_processes(nvml({"GPU-1": [], "GPU-2": [12, 7]}), ["GPU-1", "GPU-2"])
    assert found == {"GPU-2": [12, 7]}


def test_each_gpu_has_its_device_file() -> None:
    driver = nvml({"GPU-1": [], "GPU-3": []})
    assert minors(driver, ["GPU-3", "GPU-1"]) == {"GPU-3": 3, "GPU-1": 1}
    with pytest.raises(NvmlError, match="GPU-9 is not there: Not Found"):
        minors(driver, ["GPU-9"])


def test_a_driver_that_cannot_be_requested_states_why() -> None:
    driver = Driver({})
    driver.nvmlInit_v2 = _Call(lambda: 999)
    with pytest.raises(NvmlError, match="the driver cannot be asked: Unknown"):
        Nvml(driver)  # type: ignore[arg-type]  # it plays the library
