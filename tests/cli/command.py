"""The command as a real process, in an empty folder, against any API."""

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

JOB = {"id": "job_1", "name": "train", "tier": "spot", "state": "QUEUED", "created_at": "2026-01-01T00:00:00Z"}
AT_START = ("PYTHON", "LANG", "LC_")
"""Variables that an interpreter reads as it starts, and never again."""


class Command:
    """Runs ``muster`` in an empty folder with a key file of its own."""

    warm: ClassVar[Path | None] = None
    """An interpreter that has imported what commands do: for tests that are not about how one starts."""

    def __init__(self, folder: Path, python: str | None = None) -> None:
        self.folder = folder
        self.python = python or self.warm or sys.executable
        self.key_file = folder / "test.key"
        self.key_file.write_text("mst_test")

    def run(self, *words: str, url: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "COLUMNS": "80", **environment}
        if url is not None:
            variables |= {"MUSTER_API_URL": url, "MUSTER_API_KEY_FILE": str(self.key_file)}
        is_of_the_start = any(name.startswith(AT_START) for name in environment)
        answer = subprocess.run(
            [sys.executable if is_of_the_start else self.python, "-m", "muster", *words],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=110,
        )
        assert "Traceback" not in answer.stdout + answer.stderr
        return answer
