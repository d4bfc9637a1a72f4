"""A result is stale once a file of its own benchmark changed, and not when anything else did."""

import json
from pathlib import Path

import pytest

from benchmarks import runs, stale
from benchmarks.suites import SUITES
from tests.benchmarks.repository import commit

MODULES = {
    "benchmarks/tour.py": "from benchmarks.figures import Figure\nfrom benchmarks import stage\nSTAGE = stage\n",
    "benchmarks/stage.py": "PROGRAM = 'benchmarks.program'\n",
    "benchmarks/program.py": "import benchmarks.deep\n",
    "benchmarks/deep.py": "",
    "benchmarks/other.py": "",
    "benchmarks/calibration.py": "",
    "benchmarks/figures.py": "",
    "muster/product.py": "",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a result of the suite `tour`, measured at its first commit."""
    root = tmp_path / "repository"
    first = commit(root, MODULES)
    commit(
        root, {"benchmarks/results/tour.json": "[]", "benchmarks/results/runs/tour.json": json.dumps({"commit": first})}
    )
    return root


def test_a_result_of_the_benchmark_as_it_is_is_not_stale(root: Path) -> None:
    assert stale.stale(root) == []


@pytest.mark.parametrize("module", ["tour", "stage", "program", "deep", "calibration"])
def test_a_change_of_a_module_that_it_is_made_of_makes_it_stale(root: Path, module: str) -> None:
    commit(root, {f"benchmarks/{module}.py": MODULES[f"benchmarks/{module}.py"] + "VALUE = 1\n"})
    (found,) = stale.stale(root)
    assert found.name == "tour"
    assert f"benchmarks/{module}.py" in found.why


def test_a_change_that_is_not_committed_counts_too(root: Path) -> None:
    (root / "benchmarks/deep.py").write_text("VALUE = 1\n")
    assert len(stale.stale(root)) == 1


@pytest.mark.parametrize("path", ["benchmarks/other.py", "benchmarks/figures.py", "muster/product.py"])
def test_a_change_elsewhere_leaves_it(root: Path, path: str) -> None:
    commit(root, {path: "VALUE = 1\n"})
    assert stale.stale(root) == []


def test_a_result_without_a_commit_or_of_one_that_is_not_here_is_stale(root: Path) -> None:
    record = root / "benchmarks/results/runs/tour.json"
    record.write_text(json.dumps({"commit": "0" * 40}))
    assert "not in this repository" in stale.stale(root)[0].why
    record.unlink()
    assert "no commit is recorded" in stale.stale(root)[0].why


def test_a_suite_that_was_never_measured_has_no_result(root: Path) -> None:
    (root / "benchmarks/results/tour.json").unlink()
    assert [(one.name, one.why) for one in stale.stale(root)] == [("tour", "it has no result")]


def test_a_suite_is_made_of_what_its_modules_import_and_start() -> None:
    folder = runs.ROOT / "benchmarks"
    assert {"ingest", "ingest_baseline", "calibration"} <= set(stale.closure(SUITES["ingest"], folder))
    assert {"runtime_gpu", "gpu_program"} <= set(stale.closure(SUITES["runtime_gpu"], folder))
    assert {"tour", "small_stack"} <= set(stale.closure(SUITES["tour"], folder))
    assert not stale.SHOWS_AND_STORES & set(stale.closure(SUITES["scheduler"], folder))
