"""`make quick`: what a change reaches, what is chosen of it, and what is reported of the rest."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools import quick
from tools.import_graph import graph_of
from tools.import_statements import read_source
from tools.quick_plan import LAST_FAILED, LeftOut, Plan, last_failed, plan_tests
from tools.quick_stages import Outcome, TriedTests, run_tests
from tools.reach_rules import CHANGES_EVERYTHING, RULES
from tools.reachable_tests import Reach, reachable_tests
from tools.test_durations import FileDuration
from tools.typical_changes import TYPICAL_CHANGES, apply

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pkg/core.py": "",
    "pkg/edge.py": "import pkg.core\nPAGE = 'page.html'\n",
    "pkg/templates/page.html": "{% include 'row.html' %}",
    "pkg/templates/row.html": "",
    "tests/conftest.py": "import pytest\nimport pkg.edge\n@pytest.fixture\ndef edge(): return pkg.edge\n",
    "tests/pkg/test_core.py": "import pkg.core\n",
    "tests/pkg/test_edge.py": "def test_it(edge): ...\n",
    "tests/pkg/test_other.py": "def test_it(): ...\n",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def reached(checkout: Path, *changed: str) -> dict[str, int]:
    sources = {name: read_source(text) for name, text in FILES.items() if name.endswith(".py")}
    found = reachable_tests(checkout, changed, graph_of(sources))
    return {path: reach.distance for path, reach in found.items()}


def test_a_change_reaches_its_importers_and_the_users_of_fixtures_nearest_first(checkout: Path) -> None:
    found = reached(checkout, "pkg/core.py")
    assert found == {"tests/pkg/test_core.py": 1, "tests/pkg/test_edge.py": 2}
    assert list(found) == ["tests/pkg/test_core.py", "tests/pkg/test_edge.py"]


def test_a_changed_test_is_the_nearest(checkout: Path) -> None:
    assert reached(checkout, "tests/pkg/test_other.py") == {"tests/pkg/test_other.py": 0}


def test_a_test_of_the_changed_files_name_is_near_without_an_import(checkout: Path) -> None:
    assert reached(checkout, "pkg/edge.py")["tests/pkg/test_edge.py"] == 1


def test_a_template_reaches_through_the_template_that_includes_it(checkout: Path) -> None:
    assert set(reached(checkout, "pkg/templates/row.html")) == {"tests/pkg/test_edge.py"}


def test_a_removed_module_reaches_what_still_imports_from_its_package(checkout: Path) -> None:
    (checkout / "tests/test_it.py").write_text("import pkg.gone\n")
    (checkout / "pkg/__init__.py").write_text("")
    assert reachable_tests(checkout, ["pkg/gone.py"])["tests/test_it.py"].distance == 1


@pytest.mark.parametrize("path", [pattern for rule in RULES for pattern in (*rule.sources, *rule.tests)])
def test_each_pattern_of_the_rules_matches_a_file(path: str) -> None:
    assert any(found.is_file() for found in ROOT.glob(path.replace("/*", "/**/*")))


def test_each_file_that_changes_everything_is_there() -> None:
    assert all((ROOT / path).is_file() for path in CHANGES_EVERYTHING)


NEAR, FAR = "tests/test_near.py", "tests/test_far.py"
REACHED = {FAR: Reach(3, ""), NEAR: Reach(1, "")}


def test_the_nearest_run_first_after_what_failed_last() -> None:
    durations = {NEAR: FileDuration(4, 5.0, {}), FAR: FileDuration(2, 1.0, {})}
    plan = plan_tests(REACHED, durations, [f"{FAR}::test_bad"], longest_s=10, capacity_s=20)
    assert plan.requested == (f"{FAR}::test_bad", NEAR, FAR)
    assert (plan.files, plan.tests, plan.seconds, plan.left_out) == (2, 6, 6.0, ())


def test_a_slow_test_is_left_out_by_name_unless_it_is_near() -> None:
    durations = {NEAR: FileDuration(4, 8.0, {"test_long": 6.0}), FAR: FileDuration(3, 8.0, {"test_slow": 7.0})}
    plan = plan_tests(REACHED, durations, [], longest_s=10, capacity_s=30)
    assert plan.requested == (NEAR, FAR)
    assert plan.left_out == (LeftOut(FAR, "test_slow", 1, 7.0),)
    assert plan.tests == 6


def test_a_file_that_does_not_fit_is_left_out_and_a_shorter_one_behind_it_runs() -> None:
    durations = {NEAR: FileDuration(40, 50.0, {}), FAR: FileDuration(2, 1.0, {})}
    plan = plan_tests(REACHED, durations, [], longest_s=10, capacity_s=20)
    assert plan.requested == (FAR,)
    assert plan.left_out == (LeftOut(NEAR, None, 40, 50.0),)


def test_failed_tests_are_read_from_the_last_run_if_they_are_few_and_there(tmp_path: Path) -> None:
    assert last_failed(tmp_path) == []
    cache = tmp_path / LAST_FAILED
    cache.parent.mkdir(parents=True)
    (tmp_path / "test_here.py").write_text("")
    cache.write_text(json.dumps({"test_here.py::test_a": True, "test_gone.py::test_b": True}))
    assert last_failed(tmp_path) == ["test_here.py::test_a"]
    cache.write_text(json.dumps({f"test_here.py::test_{index}": True for index in range(99)}))
    assert last_failed(tmp_path) == []


TESTS = "import time\n\ndef test_first():\n    time.sleep({seconds})\n\ndef test_second(): ...\n"


@pytest.mark.parametrize("workers", [(), ("-n", "1", "--dist", "loadfile")], ids=["alone", "by a worker"])
def test_from_the_deadline_on_no_test_begins_and_its_name_is_recorded(tmp_path: Path, workers: tuple[str, ...]) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS.format(seconds=1000))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tools.quick_deadline", *workers],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "QUICK_DEADLINE": "0", "QUICK_NOTES": str(tmp_path)},
        check=False,
    )
    assert ended.returncode in {0, 5}
    (notes,) = tmp_path.glob("*.unstarted")
    assert notes.read_text().split() == ["test_it.py::test_first", "test_it.py::test_second"]


def tried(tmp_path: Path, seconds: float, deadline: float, monkeypatch: pytest.MonkeyPatch) -> TriedTests:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS.format(seconds=seconds))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return run_tests(tmp_path, Plan(("test_it.py",), 1, 2, 0.0, ()), workers=1, deadline=deadline)


def test_tests_that_end_in_time_pass_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tried(tmp_path, 0, time.monotonic() + 600, monkeypatch)
    assert (run.ended.outcome, run.unstarted) == (Outcome.PASSED, ())


def test_a_run_past_its_time_is_ended_and_its_files_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("import time\ntime.sleep(1000)\n")
    run = run_tests(tmp_path, Plan(("test_it.py",), 1, 2, 0.0, ()), workers=1, deadline=time.monotonic())
    assert (run.ended.outcome, run.unstarted) == (Outcome.LEFT_OUT, ("test_it.py",))


FAILS_THEN_HANGS = """
import pathlib, time
def test_bad(): assert False
def test_long():
    pathlib.Path("began").touch()
    time.sleep(1000)
"""


def test_a_failure_in_a_run_past_its_time_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(FAILS_THEN_HANGS)
    plan = Plan(("test_it.py",), 1, 2, 0.0, ())
    run = run_tests(tmp_path, plan, workers=1, deadline=time.monotonic() + 5)
    if not (tmp_path / "began").exists():  # a busy machine starts late
        run = run_tests(tmp_path, plan, workers=1, deadline=time.monotonic() + 60)
    assert run.ended.outcome is Outcome.FAILED
    assert "test_it.py::test_bad" in run.ended.words


@pytest.mark.parametrize("name", sorted(TYPICAL_CHANGES))
def test_each_typical_change_reaches_tests_and_is_a_change_that_lint_accepts(name: str, tmp_path: Path) -> None:
    change = TYPICAL_CHANGES[name]
    assert quick.planned(change.files, budget_s=60, workers=2).requested
    for path in change.files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    apply(change, tmp_path)
    for path in change.files:
        checked = [sys.executable, "-m", "ruff", "check", "--stdin-filename", path, "-"]
        text = (tmp_path / path).read_text()
        assert subprocess.run(checked, cwd=ROOT, input=text, text=True, check=False).returncode == 0


def test_the_whole_command_states_what_it_leaves_out_and_how_to_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main(["--list", "--typical", "scheduler-rule", "--budget", "10"]) == 0
    said = capsys.readouterr().out
    assert "1 changed files" in said
    assert "that the change can reach" in said
    assert f"make test ARGS=@{quick.LEFT_OUT}" in said
    assert "Not known: " in said


def test_a_base_that_git_does_not_know_is_refused_with_what_to_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert quick.main(["--list", "--base", "no-such-revision"]) == 2
    assert "give BASE=<revision>" in capsys.readouterr().err
