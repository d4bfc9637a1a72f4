"""A mutant is tried in a copy: killed, missed, broken, endless; the checkout is never touched."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.mutants import trial
from tools.mutants.campaign import Campaign, find_test
from tools.mutants.mutant import Mutant, Placed
from tools.mutants.trial import Bench, TrialResult

RULES = """
def is_over(used: int, most: int) -> bool:
    return used > most


def count(most: int) -> int:
    done = 0
    while done < most:
        done += 1
    return done
"""
TESTS = """
from muster.rules import count, is_over

def test_more_is_over():
    assert is_over(3, 2)

def test_what_is_allowed_is_not_over():
    assert not is_over(2, 2)

def test_it_counts():
    assert count(2) == 2
"""
ELSEWHERE = """
from pathlib import Path
from muster import rules

def test_it_lies_in_the_checkout():
    assert Path(rules.__file__).is_relative_to({root!r})
"""
OVER = Mutant("muster/rules.py", "is_over", "return used > most", 0, "comparison", "return used >= most")
ENDLESS = Mutant("muster/rules.py", "count", "done += 1", 0, "deletion", '__import__("time").sleep(60)')


def placed(mutant: Mutant, number: int, **other: str) -> Placed:
    fields = {name: getattr(mutant, name) for name in Mutant.__dataclass_fields__}
    return Placed(Mutant(**{**fields, **other}), mutant.path, number)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {"muster/__init__.py": "", "muster/rules.py": RULES, "tests/test_rules.py": TESTS, "pytest.ini": "[pytest]"}
    files |= {"tests/test_elsewhere.py": ELSEWHERE.format(root=str(tmp_path)), "tests/test_far.py": "import os\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["/usr/bin/env", "git", "init", "-q", tmp_path], check=True)
    return tmp_path


@pytest.fixture
def bench(checkout: Path) -> Iterator[Bench]:
    with Bench(checkout, warm=()) as bench:
        yield bench


def test_the_outcomes_are_distinguished(bench: Bench, checkout: Path) -> None:
    tests = ["tests/test_rules.py"]
    killed = bench.try_mutant(placed(OVER, 3), tests)
    assert (killed.outcome, killed.num_tests) == ("killed", 2)
    assert killed.by == "tests/test_rules.py::test_what_is_allowed_is_not_over"
    missed = bench.try_mutant(placed(OVER, 3, becomes="return most < used"), tests)
    assert (missed.outcome, missed.num_tests) == ("survived", 3)
    broken = bench.try_mutant(placed(OVER, 3, becomes="return unknown"), tests)
    assert (broken.outcome, broken.is_caught) == ("broken", False)
    torn = bench.try_mutant(placed(OVER, 3, becomes="return ("), tests)
    assert torn.outcome == "broken"
    endless = bench.try_mutant(placed(ENDLESS, 9), tests, words=["--timeout=4"])
    assert (endless.outcome, endless.is_caught) == ("timeout", True)
    assert bench.try_unchanged(tests).outcome == "survived"
    assert (checkout / "muster/rules.py").read_text() == RULES


def test_the_copy_is_gone_after_an_error(checkout: Path) -> None:
    bench = Bench(checkout, warm=())
    with pytest.raises(ValueError, match="holds"), bench:
        bench.try_mutant(placed(OVER, 7), ["tests/test_rules.py"])
    assert not bench._folder.exists()
    assert bench._process.poll() is not None


def test_a_test_that_fails_without_a_change_catches_nothing(checkout: Path) -> None:
    # The copy is elsewhere, so one test fails in any case. It is asked first, since it failed before.
    before = {OVER.key: TrialResult("killed", by="tests/test_elsewhere.py::test_it_lies_in_the_checkout")}
    results: list[TrialResult] = []
    Campaign(checkout, before, jobs=1, warm=()).run([OVER], lambda _, result: results.append(result))
    assert [result.by.rpartition("::")[2] for result in results] == [
        "test_it_lies_in_the_checkout",
        "test_what_is_allowed_is_not_over",
    ]


def test_a_test_that_moved_is_found_by_its_name(checkout: Path) -> None:
    moved = checkout / "tests" / "control"
    moved.mkdir()
    (checkout / "tests/test_rules.py").rename(moved / "test_rules.py")
    assert (
        find_test(checkout, "tests/test_rules.py::test_it_counts[3]") == "tests/control/test_rules.py::test_it_counts"
    )
    assert find_test(checkout, "tests/test_rules.py::test_it_sings") == ""


def test_a_copy_that_is_interrupted_leaves_nothing(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: Path, target: Path) -> None:
        target.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(trial, "copy_checkout", interrupted)
    bench = Bench(checkout, warm=())
    with pytest.raises(KeyboardInterrupt):
        bench.__enter__()  # the block itself is never entered
    assert not bench._folder.exists()
