"""Commands are forked from one interpreter that has imported their rooms."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Command
from tests.warm_python import WarmPython


@pytest.fixture(scope="session", autouse=True)
def _command_is_warm(warm_muster: WarmPython) -> Iterator[None]:
    Command.warm = warm_muster.path
    yield
    Command.warm = None


@pytest.fixture
def muster(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture
def cold_muster(tmp_path: Path) -> Command:
    """A new interpreter each time, as for a person."""
    return Command(tmp_path, sys.executable)
