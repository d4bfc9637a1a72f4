"""The tables of faults in CONTRIBUTING.md: each test that they name is there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parents[1]
PAGE: Final = TESTS.parent / "CONTRIBUTING.md"
_NAMED: Final = re.compile(r"`([\w/]+\.py|…)(?:::(\w+…?))?`")
_FEWEST: Final = 60


def named(page: str) -> Iterator[tuple[str, str]]:
    """(file, name) of each test in a table; a name may end early with …, and … for a file is the one before it."""
    file = ""
    for row in page.splitlines():
        if not row.startswith("|"):
            continue
        for found in _NAMED.finditer(row.rpartition(" | ")[2]):
            file = file if found[1] == "…" else found[1]
            yield file, found[2] or ""


def missing(page: str) -> list[str]:
    """Return the named tests that do not exist."""
    return [f"{file}::{name}" if name else file for file, name in named(page) if not _is_there(file, name)]


def _is_there(file: str, name: str) -> bool:
    path = TESTS / file
    if not path.is_file():
        return False
    tests = {
        node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    }
    whole = name.removesuffix("…")
    return not name or whole in tests or (whole != name and any(each.startswith(whole) for each in tests))


def test_each_test_that_is_named_is_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert missing(page) == []
    assert len(list(named(page))) >= _FEWEST, "the tables are read"


def test_one_that_is_not_there_is_found() -> None:
    rows = (
        "| a | b | `docs/test_fault_tables.py::test_each_test_…`, `…::test_nothing_…` |",
        "| a | b | `docs/test_fault_tables.py::test_each_test`, `docs/test_gone.py` |",
    )
    assert missing("\n".join(rows)) == [
        "docs/test_fault_tables.py::test_nothing_…",
        "docs/test_fault_tables.py::test_each_test",
        "docs/test_gone.py",
    ]
