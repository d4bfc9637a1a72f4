"""The generator's own environment: made once for these versions, and kept with the other artefacts."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
REQUIREMENTS: Final = HERE / "requirements.txt"
OUT_OF_REACH: Final = ("from versions: none", "Failed to establish a new connection", "Name or service not known")
"""What pip says where no package index answers."""


def generators_python() -> Path:
    """Its interpreter. The folder's name is of the versions, so that a change of them makes another one.

    Skips the test where no package index answers; fails it where one answers and does not have them.
    """
    key = f"{REQUIREMENTS.read_text()}{sys.version}"
    folder = ROOT / ".artefacts" / "generator" / hashlib.sha256(key.encode()).hexdigest()[:16]
    python, is_whole = folder / "bin" / "python", folder / "is-whole"
    if not is_whole.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        install = ["install", "--quiet", "--no-deps", "--requirement", str(REQUIREMENTS)]
        _run([sys.executable, "-m", "pip", "--python", str(python), *install])
        is_whole.touch()
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if any(words in done.stderr for words in OUT_OF_REACH):
        pytest.skip("NO CLIENT WAS GENERATED: the package index is not reachable from here")
    pytest.fail(f"{' '.join(command)}: {done.stderr[-2000:]}")
