import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.ports import meeting_port

from .attempt_case import Attempt


@pytest.fixture
def make_attempt(tmp_path: Path, rendezvous_port: int) -> Callable[[], Attempt]:
    """As many as a test needs, one after the other; buried with it."""
    made: list[Attempt] = []

    def make() -> Attempt:
        folder = tmp_path / "attempts" / f"att_{tmp_path.name}_{os.getpid()}_{len(made)}"
        folder.mkdir(parents=True, mode=0o700)
        made.append(Attempt(folder, rendezvous_port))
        return made[-1]

    return make


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
    return meeting_port()
