"""Few cases by default, and all of them in `make soak`, which names the folders of every test that has fewer."""

import re
from pathlib import Path

from tests.scaled import IS_SOAK, LEAST, examples

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SHARED = {"tests/conftest.py", "tests/scaled.py", "tests/test_scaled.py", "tests/train/marks.py"}


def test_few_cases_are_tried_unless_it_soaks() -> None:
    assert examples(200) == (200 if IS_SOAK else 40)
    assert examples(10) == 10
    assert examples(50) == (50 if IS_SOAK else LEAST)
    assert examples(3, quick=1) == (3 if IS_SOAK else 1)


def test_each_test_with_fewer_cases_is_in_the_soak() -> None:
    found = re.search(r"^SOAKED = (.+)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    soaked = [ROOT / name for name in found[1].split()]
    assert [path for path in soaked if not path.exists()] == []
    scaled = [path for path in (ROOT / "tests").rglob("*.py") if "from tests.scaled import" in path.read_text()]
    assert [
        name
        for path in scaled
        if (name := path.relative_to(ROOT).as_posix()) not in SHARED
        and not any(path.is_relative_to(folder) for folder in soaked)
    ] == []
