"""The tests of a change come in the order in which they are likely to notice it."""

from pathlib import Path

import pytest

from tools.mutants.mutant import Mutant, Placed
from tools.mutants.nearness import NearestTests

FILES = {
    "health/__init__.py": "",
    "health/score.py": "def score(a):\n    return _sum(a)\n\ndef _sum(a):\n    return a + 1\n",
    "health/judge.py": "from health.score import score\n\ndef judge(a):\n    return score(a)\n",
    "tests/health/test_score.py": "from health.score import score\n",
    "tests/health/test_judge.py": "from health.judge import judge\n",
    "tests/api/conftest.py": "from health.judge import judge\n",
    "tests/api/test_route.py": "def test_it(client): ...\n",
    "tests/stack/test_whole.py": "from health.judge import judge\n",
    "tests/train/test_other.py": "import os\n",
    "tests/authorisation/test_use_cases.py": "import ast\n",
}
PLACED = Placed(
    Mutant("health/score.py", "_sum", "return a + 1", 0, "arithmetic", "return a - 1"), "health/score.py", 5
)


@pytest.fixture
def nearest(tmp_path: Path) -> NearestTests:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return NearestTests(tmp_path)


def test_names_and_imports_decide_and_what_is_costly_comes_last(nearest: NearestTests) -> None:
    assert nearest.of(PLACED, 9) == [
        "tests/health/test_score.py",
        "tests/health/test_judge.py",
        "tests/api/test_route.py",
        "tests/stack/test_whole.py",
    ]


def test_a_test_that_reads_such_lines_comes_first(nearest: NearestTests) -> None:
    """It imports nothing of the changed code. Tests over HTTP meet the route's own check first."""
    line = "unit.principal.require(Permission.GPU_READ)"
    change = Mutant("health/score.py", "score", line, 0, "deletion", "pass")
    found = nearest.of(Placed(change, "health/score.py", 2), 9)
    assert found[:2] == ["tests/authorisation/test_use_cases.py", "tests/health/test_score.py"]
    assert "tests/authorisation/test_use_cases.py" not in nearest.of(PLACED, 9)


def test_no_more_than_requested(nearest: NearestTests) -> None:
    assert nearest.of(PLACED, 1) == ["tests/health/test_score.py"]
