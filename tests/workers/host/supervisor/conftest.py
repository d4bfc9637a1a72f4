import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.host import supervisor

from .attempt_case import Attempt


@pytest.fixture
def attempt(tmp_path: Path, rendezvous_port: int) -> Iterator[Attempt]:
    folder = tmp_path / "attempts" / f"att_{tmp_path.name}_{os.getpid()}"
    folder.mkdir(parents=True, mode=0o700)
    one = Attempt(folder, rendezvous_port)
    yield one
    found = supervisor.adopt(folder)
    if found.pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.pid, signal.SIGKILL)
    for pid in one.processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def rendezvous_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
