import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.supervisor.lock import is_locked

from .attempt_case import Attempt, until


@pytest.fixture
def make_attempt(tmp_path: Path, rendezvous_port: int) -> Iterator[Callable[[], Attempt]]:
    """As many as a test needs, one after the other."""
    made: list[Attempt] = []

    def make() -> Attempt:
        folder = tmp_path / "attempts" / f"att_{tmp_path.name}_{os.getpid()}_{len(made)}"
        folder.mkdir(parents=True, mode=0o700)
        made.append(Attempt(folder, rendezvous_port))
        return made[-1]

    yield make
    for one in made:
        _bury(one)


def _bury(one: Attempt) -> None:
    """Nothing of it may outlive its test: no process, and no group of the kernel's."""
    until(lambda: _is_gone(one), "the supervisor's end")
    supervisor.prove_clean(one.folder)


def _is_gone(one: Attempt) -> bool:
    """One that had only just been spawned is found, and killed, once it has said who it is."""
    found = supervisor.adopt(one.folder)
    for pid in (found.pid, *one.processes()):
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return not is_locked(one.folder / files.LOCK)


@pytest.fixture
def attempt(make_attempt: Callable[[], Attempt]) -> Attempt:
    return make_attempt()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that others may pass through; pytest's own is closed to them."""
    with tempfile.TemporaryDirectory(prefix="muster-users-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def rendezvous_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
