"""What stands for the containers of the compose file."""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.deploy import processes
from tests.deploy.processes import Machine


def test_a_program_below_a_folder_that_containers_have_too_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkout may lie below ``/tmp``, which is a folder of its own in each container."""
    variables = {"MUSTER_API_NAME": "muster.example"}
    machine = Machine(tmp_path / "machine", variables, tmp_path, Path("/usr/bin/python3"))
    lives: Any = SimpleNamespace(is_running=lambda: True)
    machine.processes["postgres"] = lives
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the place that it is about
        program = Path(folder) / "pg_isready"
        program.write_text('#!/bin/sh\n[ "$2" = "--port=' + machine.ports["5432"] + '" ]\n')
        program.chmod(0o755)
        monkeypatch.setattr(processes, "find_postgres", lambda: SimpleNamespace(directory=Path(folder)))
        assert machine.is_healthy(machine.services["postgres"])
