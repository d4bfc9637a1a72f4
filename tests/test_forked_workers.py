"""The workers of a run import its tests once for all of them, share what is warm, and leave nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.waiting import wait_until

ROOT: Final = Path(__file__).resolve().parent.parent
# The warm servers need not import torch here.
CONFTEST: Final = """
from tests.warm_python import MODULES

MODULES.update(dict.fromkeys(MODULES, ("json",)))
"""
HEAD: Final = """
import os, subprocess, sys, time
from pathlib import Path

from tests.waiting import wait_until

HERE = Path(__file__).parent

def note(name, text):
    with (HERE / name).open("a") as notes:
        notes.write(f"{text}\\n")

"""
IMPORTS: Final = """
import pytest

note("imports", os.getpid())

@pytest.mark.parametrize("number", [1, 2, 3, 4], ids=lambda number: f"\\xd7 {number}")
def test_it(number, warm_python):
    code = "import os; print(os.getppid())"
    note("warm", subprocess.check_output([warm_python.path, "-c", code], text=True).strip())
    note("workers", os.getpid())
    note("arguments", sys.argv)
    note("main", vars(sys.modules["__main__"]).get("__file__"))
    wait_until(lambda: len(set((HERE / "workers").read_text().split())) == 2)
    assert number == 7
"""
DIES: Final = """
import signal

def test_dies(warm_python):
    sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([warm_python.daemon, "-c", sleeps], stdout=subprocess.PIPE, text=True)
    note("left", process.stdout.readline().strip())
    os.kill(os.getpid(), signal.SIGKILL)

def test_next():
    assert "test_dies" in sys.modules
"""
SLEEPS: Final = """
def test_sleeps(warm_python, server_folder, pytestconfig):
    sleeps = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    process = subprocess.Popen([warm_python.daemon, "-c", sleeps], stdout=subprocess.PIPE, text=True)
    note("pids", f"{process.stdout.readline().strip()} {os.getpid()} {process.pid} {os.getppid()}")
    note("folders", f"{server_folder} {pytestconfig.workerinput['shared_folder']}")
    time.sleep(600)
"""


def command_of(folder: Path, test: str, workers: int) -> list[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p no:valkey\n")
    name = "test_dies.py" if test is DIES else "test_it.py"
    (folder / name).write_text(HEAD + test)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    return [*command, "-n", str(workers), "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), str(folder)]


def environment() -> dict[str, str]:
    """Return ours without the marks of a worker, by which the inner run would act as that worker."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**inherited, "PYTHONPATH": str(ROOT)}


def ran(folder: Path, test: str, workers: int) -> str:
    command = command_of(folder, test, workers)
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout


def notes_of(folder: Path, name: str) -> list[str]:
    path = folder / name
    return path.read_text().split("\n")[:-1] if path.exists() else []


def test_workers_have_modules_that_were_imported_once_and_share_what_is_warm(tmp_path: Path) -> None:
    said = ran(tmp_path, IMPORTS, workers=2)
    assert len(set(notes_of(tmp_path, "workers"))) == 2, said
    (importing,) = notes_of(tmp_path, "imports")
    assert importing not in notes_of(tmp_path, "workers")
    assert len(set(notes_of(tmp_path, "warm"))) == 1, "one server forked for both"
    assert "assert 1 == 7" in said, "the assertion is rewritten"
    assert "test_it[\\xd7 1]" in said, "the name is escaped once"
    assert set(notes_of(tmp_path, "arguments")) == {"['-c']"}
    assert set(notes_of(tmp_path, "main")) == {"None"}, "it is no part of the worker that it is a fork"


def test_a_worker_that_is_killed_takes_its_forks_along_and_the_next_is_a_fork_too(tmp_path: Path) -> None:
    said = ran(tmp_path, DIES, workers=1)
    assert "1 failed, 1 passed" in said, said
    (left,) = notes_of(tmp_path, "left")
    wait_until(lambda: not Path(f"/proc/{left}").exists())


@pytest.fixture
def sleeping(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run whose only test sleeps, with a fork of a warm server."""
    with subprocess.Popen(
        command_of(tmp_path, SLEEPS, workers=1),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        try:
            wait_until(lambda: bool(notes_of(tmp_path, "folders")) or run.poll() is not None)
            assert run.poll() is None
            yield run
        finally:
            run.kill()


def assert_nothing_is_left(folder: Path) -> None:
    (pids,) = notes_of(folder, "pids")
    (folders,) = notes_of(folder, "folders")
    paths = [Path("/proc") / pid for pid in pids.split()] + [Path(path) for path in folders.split()]
    wait_until(lambda: not [path for path in paths if path.exists()])


def test_a_killed_run_leaves_nothing(tmp_path: Path, sleeping: subprocess.Popen[bytes]) -> None:
    sleeping.kill()
    assert sleeping.wait() == -signal.SIGKILL
    assert_nothing_is_left(tmp_path)


def test_ctrl_c_ends_a_run_that_leaves_nothing(tmp_path: Path, sleeping: subprocess.Popen[bytes]) -> None:
    os.killpg(sleeping.pid, signal.SIGINT)
    assert sleeping.wait(60) == pytest.ExitCode.INTERRUPTED
    assert_nothing_is_left(tmp_path)
