"""What an attempt left is set aside whole, whatever ends the launcher meanwhile."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.workers.host.content.dying_fetch import DIES
from workers.host.outputs.setting_aside import (
    COLLECTION,
    OutputOrder,
    read_collection,
    set_aside,
    waiting,
)

ATTEMPT = "att_1"
SCRIPT = Path(__file__).with_name("dying_set_aside.py")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return made(tmp_path / "state")


def made(state_dir: Path, *patterns: str, below: str | None = "") -> Path:
    """Make the folders of an attempt that has ended."""
    for name in ("outputs", "work"):
        (state_dir / name / ATTEMPT / "inner").mkdir(parents=True)
        (state_dir / name / ATTEMPT / "inner" / "file").write_text(name)
    outputs = OutputOrder(
        folder=str(state_dir / "outputs" / ATTEMPT),
        seen_at="/muster/output",
        patterns=patterns or ("inner/*",),
        max_bytes=1000,
        max_files=10,
        below=below,
    )
    attempt = state_dir / "attempts" / ATTEMPT
    attempt.mkdir(parents=True)
    order = {"fence": 7, "user": {"uid": None}, "outputs": msgspec.to_builtins(outputs)}
    (attempt / "order.json").write_bytes(msgspec.json.encode(order))
    return state_dir


def found_in(state_dir: Path) -> list[str]:
    """Return what was set aside, without a draft that a kill left."""
    place = state_dir / "set_aside" / ATTEMPT
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("[!.]*") if path.is_file())


WHOLE = [COLLECTION, "output/inner/file", "work/inner/file"]


def test_both_folders_are_out_of_reach_at_once(state_dir: Path) -> None:
    set_aside(state_dir, ATTEMPT)
    assert found_in(state_dir) == WHOLE
    assert (state_dir / "set_aside").stat().st_mode & 0o777 == 0o700
    assert [list((state_dir / name).iterdir()) for name in ("outputs", "work")] == [[], []]
    [place] = waiting(state_dir)
    wanted = read_collection(place)
    assert wanted is not None
    assert (wanted.attempt_id, wanted.fence, wanted.name) == (ATTEMPT, 7, "final")
    set_aside(state_dir, ATTEMPT)
    assert found_in(state_dir) == WHOLE


def test_a_launcher_that_dies_anywhere_leaves_it_to_the_next(tmp_path: Path) -> None:
    for after in range(1, 100):
        state_dir = made(tmp_path / f"state-{after}")
        command = [sys.executable, str(SCRIPT), str(state_dir), ATTEMPT, str(after)]
        code = subprocess.run(command, check=False).returncode
        if list(waiting(state_dir)):
            assert found_in(state_dir) == WHOLE, "nothing is collected before all of it is there"
        set_aside(state_dir, ATTEMPT)
        assert found_in(state_dir) == WHOLE
        if code == 0:
            break
        assert code == DIES
    assert after >= 5


def test_without_patterns_the_work_folder_stays(tmp_path: Path) -> None:
    for below, patterns in ((None, ("*",)), ("", ())):
        state_dir = tmp_path / f"state-{below}"
        made(state_dir, *patterns, below=below)
        if not patterns:
            order = msgspec.json.decode((state_dir / "attempts" / ATTEMPT / "order.json").read_bytes())
            order["outputs"]["patterns"] = []
            (state_dir / "attempts" / ATTEMPT / "order.json").write_bytes(msgspec.json.encode(order))
        set_aside(state_dir, ATTEMPT)
        assert found_in(state_dir) == [COLLECTION, "output/inner/file"]
        assert (state_dir / "work" / ATTEMPT).is_dir()


def test_an_attempt_without_an_order_or_outputs_leaves_nothing(tmp_path: Path) -> None:
    state_dir = made(tmp_path / "state")
    (state_dir / "attempts" / ATTEMPT / "order.json").write_text('{"fence": 7, "user": {}}')
    set_aside(state_dir, ATTEMPT)
    set_aside(state_dir, "att_2")
    assert not (state_dir / "set_aside").exists()


def test_a_folder_that_its_program_closed_is_set_aside(state_dir: Path) -> None:
    (state_dir / "outputs" / ATTEMPT).chmod(0o000)
    set_aside(state_dir, ATTEMPT)
    assert "output/inner/file" in found_in(state_dir)
