"""A property test that finds a fault leaves its example in a file, by which another clone finds the fault at once."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

from tests.found_examples import FOLDER

ROOT = Path(__file__).resolve().parent.parent
CONFTEST = """
from pathlib import Path

from hypothesis import settings

from tests.found_examples import KeepsExamples, found_examples

EXAMPLES = found_examples(Path(__file__).parent / "examples_found")
settings.register_profile("keeping", database=EXAMPLES, derandomize=False)
settings.load_profile("keeping")


def pytest_configure(config):
    config.pluginmanager.register(KeepsExamples(EXAMPLES))
"""
PROPERTY = """
from hypothesis import Phase, given, settings
from hypothesis import strategies as st


@settings(max_examples={examples}, phases={phases})
@given(value=st.integers())
def test_property(value):
    assert {claim}
"""
ALL_PHASES = "tuple(Phase)"
KEPT_ALONE = "(Phase.reuse,)"
"""Nothing is made up: only kept examples are tried."""


def try_property(folder: Path, claim: str, *words: str, phases: str = ALL_PHASES) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(PROPERTY.format(claim=claim, examples=500, phases=phases))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_worker_that_finds_a_fault_leaves_its_smallest_example_which_another_clone_tries(tmp_path: Path) -> None:
    found = try_property(tmp_path, "value < 1000", "-n", "1")
    assert found.returncode == 1
    (kept,) = (tmp_path / "examples_found").iterdir()
    assert kept.read_text() in found.stdout
    assert kept.read_text().startswith("test_it.py::test_property\n")

    rmtree(tmp_path / ".hypothesis")
    again = try_property(tmp_path, "value != 1000", phases=KEPT_ALONE)
    assert again.returncode == 1, "the kept example of the changed test was not tried"
    assert "assert 1000 != 1000" in again.stdout


def test_a_kept_example_stays_when_it_holds(tmp_path: Path) -> None:
    assert try_property(tmp_path, "value < 1000").returncode == 1
    assert try_property(tmp_path, "value == value").returncode == 0
    assert len(list((tmp_path / "examples_found").iterdir())) == 1


def test_a_test_that_holds_leaves_no_example(tmp_path: Path) -> None:
    assert try_property(tmp_path, "value == value").returncode == 0
    assert not (tmp_path / "examples_found").exists()


def test_each_kept_example_names_a_test_that_is_there() -> None:
    for path in FOLDER.glob("*.txt"):
        test = path.read_text().partition("\n")[0]
        name = test.partition("::")[2].partition("[")[0].rpartition("::")[2]
        assert f"def {name}(" in (ROOT / test.partition("::")[0]).read_text(), f"{path}: {test} no longer exists"
