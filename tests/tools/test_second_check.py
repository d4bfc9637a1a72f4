"""Failed tests run again, alone: a broken one stays broken, a racy one is recorded, and refused the second time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.second_check import ARTEFACT, MAX_FAILED, RECORD, read_record

ROOT = Path(__file__).resolve().parents[2]
RACY = """
from pathlib import Path

def test_holds_the_second_time():
    seen = Path("seen")
    had_seen, _ = seen.exists(), seen.touch()
    assert had_seen
"""
RACE = "test_it.py::test_holds_the_second_time"
BROKEN = "def test_is_broken():\n    assert False\n"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def checked_at_twice(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    assert run(folder, "pytest").returncode != 0
    return run(folder, "tools.second_check")


def test_a_race_is_named_and_recorded_in_the_repository_and_as_an_artefact(tmp_path: Path) -> None:
    ended = checked_at_twice(tmp_path, RACY)
    assert ended.returncode == 0
    assert "PASSED ALONE" in ended.stderr
    assert RACE in ended.stderr
    assert list(read_record(tmp_path / RECORD)) == [RACE]
    assert list(read_record(tmp_path / ARTEFACT)) == [RACE]


def test_the_same_race_fails_the_run_the_second_time_and_is_recorded_once(tmp_path: Path) -> None:
    assert checked_at_twice(tmp_path, RACY).returncode == 0
    (tmp_path / "seen").unlink()
    ended = checked_at_twice(tmp_path, RACY)
    assert ended.returncode == 1
    assert f"{RACE} (since " in ended.stderr
    assert (tmp_path / RECORD).read_text().count(RACE) == 1


def test_another_race_is_recorded_next_to_the_first(tmp_path: Path) -> None:
    assert checked_at_twice(tmp_path, RACY).returncode == 0
    other = RACY.replace("seen", "other").replace("test_holds", "test_other")
    assert checked_at_twice(tmp_path, other).returncode == 0
    assert len(read_record(tmp_path / RECORD)) == 2


def test_each_test_on_record_is_still_in_its_file() -> None:
    for test in read_record(ROOT / RECORD):
        path, _, name = test.partition("::")
        assert name.partition("[")[0].rpartition("::")[2] in (ROOT / path).read_text(), f"{RECORD}: {test} is missing"


def test_what_is_broken_stays_broken(tmp_path: Path) -> None:
    ended = checked_at_twice(tmp_path, RACY + BROKEN)
    assert ended.returncode == 1
    assert "HELD" not in ended.stderr
    assert not (tmp_path / RECORD).exists()


def test_many_are_not_checked(tmp_path: Path) -> None:
    many = [RACY.replace("seen", f"seen_{index}").replace("holds", f"{index}") for index in range(MAX_FAILED + 1)]
    ended = checked_at_twice(tmp_path, "\n".join(many))
    assert ended.returncode == 1
    assert "no more than" in ended.stderr


@pytest.mark.parametrize("merged", [None, "{", "{}"])
def test_a_run_that_ended_otherwise_stays_ended(tmp_path: Path, merged: str | None) -> None:
    if merged is not None:
        cache = tmp_path / ".pytest_cache/v/cache"
        cache.mkdir(parents=True)
        (cache / "lastfailed").write_text(merged)
    assert run(tmp_path, "tools.second_check").returncode == 1
