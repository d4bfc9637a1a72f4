"""Durations of test files: measured together with others, stored as seconds of a quiet machine, one line a file."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.calibration import REFERENCE_MS
from tools import test_durations
from tools.house.loop import reference_s
from tools.test_durations import (
    OF_RUN,
    PROCESSORS,
    RECORDED,
    RECORDED_PARTIAL,
    STORED,
    FileDuration,
    Measured,
    durations_of,
    measured_in,
    merged,
    read_durations,
    slowdown_of,
    unfit,
    write_durations,
)

ROOT = Path(__file__).resolve().parents[2]
BUSY = Measured("tests/test_a.py::test_busy", wall_s=4.0, own_s=1.0, children_s=0.0)


def test_a_test_that_computes_counts_with_processor_time_and_one_that_waits_with_its_share_of_the_wall_time() -> None:
    waits = Measured("tests/test_a.py::test_waits", wall_s=12.0, own_s=0.01, children_s=0.0)
    starts = Measured("tests/test_b.py::test_starts", wall_s=4.0, own_s=0.5, children_s=1.0)
    assert slowdown_of([BUSY, waits, starts]) == 4.0
    assert durations_of([BUSY, waits, starts]) == {
        "tests/test_a.py": FileDuration(2, 4.0, {"test_waits": 3.0}),
        "tests/test_b.py": FileDuration(1, 1.5, {}),
    }


def test_a_test_that_ends_a_server_of_the_session_counts_with_what_fits_into_its_time() -> None:
    last = Measured("tests/test_a.py::test_last", wall_s=1.0, own_s=0.1, children_s=300.0)
    assert durations_of([last])["tests/test_a.py"].seconds == PROCESSORS


def test_a_quiet_machine_is_not_slower_than_itself() -> None:
    assert slowdown_of([]) == 1.0
    assert slowdown_of([Measured("t", wall_s=1.0, own_s=1.1, children_s=0.0)]) == 1.0


def test_what_is_stored_is_read_again_and_files_that_are_gone_leave_it(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("")
    stored = {"tests/test_a.py": FileDuration(2, 4.5, {"test_x[a::b]": 3.0})}
    gone = {"tests/test_gone.py": FileDuration(1, 1.0, {})}
    write_durations(tmp_path, merged(tmp_path, gone, stored))
    assert read_durations(tmp_path) == stored
    assert len((tmp_path / STORED).read_text().splitlines()) == 3


def test_the_busy_part_of_a_run_counts_as_on_the_reference_machine() -> None:
    run = {"wall_s": 1_000.0, "busy_share": 0.8, "calibration_ms": [1.5 * REFERENCE_MS, 2.5 * REFERENCE_MS]}
    assert reference_s(run) == pytest.approx(200 + 800 / 1.5)


def test_a_run_records_its_tests_by_process_and_itself(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_a(): ...\ndef test_b(): assert False\n")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "tools.record_durations"]
    # The environment marks a worker of the outer run, and the inner run would act as that worker.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**inherited, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode == 1
    (tmp_path / RECORDED / "gw7.jsonl").write_text('["test_it.py::cut", 1.0')
    assert [one.test for one in measured_in(tmp_path / RECORDED)] == ["test_it.py::test_a", "test_it.py::test_b"]
    run = json.loads((tmp_path / RECORDED / OF_RUN).read_text())
    assert run["tests"] == {"failed": 1, "passed": 1}
    assert (run["asks_for_all"], run["exit_status"], run["workers"]) == (True, 1, 1)
    assert 0 < run["busy_share"] <= 1
    assert min(run["calibration_ms"]) > 0, "before its tests, and after them"
    assert reference_s(run) != run["wall_s"]
    assert unfit(tmp_path / RECORDED) == "holds a run that did not pass (exit status 1: 1 failed, 1 passed)"
    subprocess.run([*command, "-k", "test_a"], cwd=tmp_path, env=environment, check=True)
    assert [one.test for one in measured_in(tmp_path / RECORDED_PARTIAL)] == ["test_it.py::test_a"]
    part = json.loads((tmp_path / RECORDED_PARTIAL / OF_RUN).read_text())
    assert part["asks_for_all"] is False
    assert reference_s(part) == part["wall_s"], "a part is not held against the bar, so its machine is not measured"
    assert unfit(tmp_path / RECORDED_PARTIAL) == "holds a run of some of the tests only"
    assert [one.test for one in measured_in(tmp_path / RECORDED)] == ["test_it.py::test_a", "test_it.py::test_b"]
    assert json.loads((tmp_path / RECORDED / OF_RUN).read_text()) == run


RUNS = {
    "has not ended": (None, "no run that has ended"),
    "partial": ({"asks_for_all": False, "exit_status": 0, "tests": {"passed": 1}}, "some of the tests only"),
    "failed": (
        {"asks_for_all": True, "exit_status": 1, "tests": {"failed": 1}},
        "did not pass (exit status 1: 1 failed)",
    ),
    "ended early": ({"asks_for_all": True, "exit_status": 2, "tests": {}}, "did not pass (exit status 2: no test ran)"),
}


@pytest.mark.parametrize("kind", RUNS)
def test_durations_of_a_run_that_is_not_whole_and_passed_are_not_stored(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, words = RUNS[kind]
    assert take_over(tmp_path, monkeypatch, run) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / STORED).exists()


def test_durations_of_a_whole_run_that_passed_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = {"asks_for_all": True, "exit_status": 0, "tests": {"passed": 1}}
    assert take_over(tmp_path, monkeypatch, run) == 0
    assert read_durations(tmp_path)["tests/test_a.py"].tests == 1


def take_over(root: Path, monkeypatch: pytest.MonkeyPatch, run: dict[str, object] | None) -> int:
    """Return the exit code of `make durations` in a repository with one test and this record of its run."""
    folder = root / RECORDED
    folder.mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "tests/test_a.py").write_text("")
    (folder / "gw0.jsonl").write_text(json.dumps(["tests/test_a.py::test_busy", 1.0, 0.5, 0.0]) + "\n")
    if run is not None:
        (folder / OF_RUN).write_text(json.dumps(run))
    monkeypatch.setattr(test_durations, "ROOT", root)
    monkeypatch.setattr(sys, "argv", ["durations"])
    return test_durations.main()


def test_the_stored_file_of_the_repository_is_small_and_names_files_that_are_there() -> None:
    assert (ROOT / STORED).stat().st_size < 100_000
    assert all((ROOT / path).is_file() for path in read_durations(ROOT))
