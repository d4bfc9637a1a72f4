"""Trials of mutants in a copy of the checkout: the checkout itself is never changed, however the run ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tools.git import listed_files
from tools.mutants.mutant import Placed

LINKED: Final = (".venv", ".git", "console/static/vendor", "node_modules")
"""Paths that git ignores and tests use: shared with the checkout."""
WARM: Final = (
    "sqlalchemy.orm",
    "sqlalchemy.dialects.postgresql",
    "psycopg",
    "pydantic",
    "msgspec",
    "fastapi",
    "httpx",
    "structlog",
    "numpy",
    "hypothesis.strategies",
    "yaml",
    "alembic.command",
    "starlette.testclient",
)
"""Third-party modules that most tests import. torch is not here: its threads do not survive a fork."""
CPU_S: Final = 60.0
TEST_S: Final = 60.0
WALL_S: Final = 300.0
"""Limit on an idle machine. If processes wait for a CPU, the limits grow with the load."""
STAMP: Final = 2_000_000_000
"""The first time of change given to a mutated file. Each has its own, so that no compiled file of another is used."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of one mutant: killed, timeout, survived, broken or not placed; ``by`` is the test that failed."""

    outcome: str
    by: str = ""
    error: str = ""
    num_tests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    is_cut_short: bool = False
    tests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def is_caught(self) -> bool:
        """True if a test failed because of the mutant."""
        return self.outcome in {"killed", "timeout"}

    def row(self) -> dict[str, Any]:
        """Return the fields that a file keeps."""
        row = asdict(self)
        del row["failed"]
        return row


class Bench:
    """A copy of a checkout with a warm process. Use it as a context: the copy is removed at its end."""

    def __init__(self, root: Path, warm: Sequence[str] = WARM) -> None:
        self._root = root
        self._warm = warm
        self._folder = Path(tempfile.mkdtemp(prefix="muster-mutants-"))
        self._copy = self._folder / "checkout"
        self._num_applied = 0

    def __enter__(self) -> Self:
        self._folder.chmod(0o711)
        try:
            copy_checkout(self._root, self._copy)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        program = Path(__file__).with_name("warm_tests.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(self._copy), *self._warm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self._copy), "GIT_OPTIONAL_LOCKS": "0"},
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.stop()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def try_mutant(
        self,
        placed: Placed,
        tests: Sequence[str],
        *,
        first: str = "",
        words: Sequence[str] = (),
        cpu_s: float = CPU_S,
    ) -> TrialResult:
        """Apply a mutant, run the tests until one fails or the budget is spent, and restore the file."""
        path = self._copy / placed.path
        before, text = path.stat(), path.read_text(encoding="utf-8")
        self._num_applied += 1
        try:
            path.write_text(placed.applied(text), encoding="utf-8")
            os.utime(path, (STAMP + self._num_applied, STAMP + self._num_applied))
            return self._ask(tests, ["-x", *words], cpu_s, WALL_S, first)
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def try_unchanged(self, tests: Sequence[str]) -> TrialResult:
        """Run tests on the product as it is, all of them."""
        return self._ask(tests, [], CPU_S * len(tests), WALL_S * len(tests))

    def stop(self) -> None:
        """End the warm process, and with it the tests that run."""
        self._process.terminate()

    def output(self) -> str:
        """Return what the last tests printed."""
        return (self._folder / "output.txt").read_text(encoding="utf-8", errors="replace")

    def _ask(
        self, tests: Sequence[str], words: Sequence[str], cpu_s: float, wall_s: float, first: str = ""
    ) -> TrialResult:
        request: dict[str, Any] = {
            "tests": [*tests],
            "first": first,
            "words": [*words],
            "cpu_s": cpu_s,
        }
        pressure = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        request |= {"test_s": TEST_S * pressure, "wall_s": wall_s * pressure}
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the warm process has no pipes")
        self._process.stdin.write(json.dumps({**request, "folder": str(self._folder)}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the warm process ended with {self._process.wait()}")
        shutil.rmtree(self._copy / ".hypothesis", ignore_errors=True)
        answer = json.loads(line)
        known = {name: answer[name] for name in TrialResult.__dataclass_fields__ if name in answer}
        return TrialResult(**{**known, "tests": [*tests]})


def copy_checkout(root: Path, target: Path) -> None:
    """Copy the files that git tracks or would track, with their times; link what is shared."""
    for name in listed_files(root):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name, follow_symlinks=False)
    for name in LINKED:
        if (root / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).symlink_to((root / name).resolve())
