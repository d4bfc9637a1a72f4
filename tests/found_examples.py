"""Examples by which Hypothesis found a fault, kept in the repository: ``tests/examples_found``.

Hypothesis keeps its examples in ``.hypothesis``, which no other clone sees, and removes each that holds. Here the
smallest example of a failed test is also written to a file, which names the test and is committed with the repair. The
example is then tried first, on every machine, and stays when it holds. The failure's report has the file's text too: a
developer copies it from a run in CI, whose clone is thrown away.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Final

import pytest
from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase

FOLDER: Final = Path(__file__).resolve().parent / "examples_found"
MAX_EXAMPLES: Final = 3
"""A test may fail in several ways, and has an example of each."""
INNER_KEYS: Final = (b".secondary", b".pareto")
"""Ends of the keys under which Hypothesis keeps what is not its smallest example."""


class FoundExamples(ExampleDatabase):
    """A local database, to which the repository's examples of the test that runs are added.

    Hypothesis's own key of a test changes with the test's text; an example of the repository uses the test's name.
    """

    def __init__(self, folder: Path, local: ExampleDatabase) -> None:
        super().__init__()
        self._folder = folder
        self._local = local
        self._test = ""
        self._found: set[bytes] = set()

    def begin(self, test: str) -> None:
        """Name the test that runs from now on."""
        self._test = test
        self._found = set()

    def keep(self) -> list[Path]:
        """Write the smallest examples of the test, which failed, and return their files. One that is kept stays."""
        kept = []
        for value in sorted(self._found, key=lambda value: (len(value), value))[:MAX_EXAMPLES]:
            name = re.sub(r"\W+", "_", self._test.rpartition("::")[2])[:80]
            path = self._folder / f"{name}-{hashlib.sha256(value).hexdigest()[:12]}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{self._test}\n{base64.b64encode(value).decode()}\n", encoding="utf-8")
            kept.append(path)
        return kept

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Yield the repository's examples first."""
        if not key.endswith(INNER_KEYS):
            yield from self._kept()
        for value in self._local.fetch(key):
            self._note(key, value)
            yield value

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example that fails, for now."""
        self._note(key, value)
        self._local.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove an example that holds, or that is not the smallest; of the repository's none."""
        if not key.endswith(INNER_KEYS):
            self._found.discard(value)
        self._local.delete(key, value)

    def _note(self, key: bytes, value: bytes) -> None:
        if not key.endswith(INNER_KEYS):
            self._found.add(value)

    def _kept(self) -> Iterable[bytes]:
        for path in sorted(self._folder.glob("*.txt")):
            test, _, value = path.read_text(encoding="utf-8").partition("\n")
            if test == self._test:
                yield base64.b64decode(value)


class KeepsExamples:
    """A pytest plugin that gives the database the running test, and how it ended."""

    def __init__(self, examples: FoundExamples) -> None:
        self._examples = examples

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._examples.begin(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" and report.failed:
            for path in self._examples.keep():
                words = f"{path}, to be committed:\n{path.read_text(encoding='utf-8')}"
                report.sections.append(("Hypothesis example", words))
        return report


def found_examples(folder: Path = FOLDER) -> FoundExamples:
    """Return the database of the repository's examples and this clone's."""
    return FoundExamples(folder, DirectoryBasedExampleDatabase(".hypothesis/examples"))
