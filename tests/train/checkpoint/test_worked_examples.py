"""The worked examples at the top of modules are what the modules do."""

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from muster.train.checkpoint import fences, generations
from muster.train.checkpoint.fences import FENCE, StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import FileRecord, Manifest
from muster.train.runtime.durable_files import HashingFile

STEP = 40


def example(module: ModuleType) -> list[list[str]]:
    """The columns of the lines of the module's literal block."""
    block = (module.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    return [re.split(r"\s{2,}", line.strip()) for line in block.splitlines() if line.strip()]


def dump(file: HashingFile) -> None:
    file.write(b"weights")


def about(fence: int, files: list[FileRecord]) -> Manifest:
    return Manifest(
        step=STEP,
        fence=fence,
        attempt_id="att_1",
        committed_at_unix_ms=1_700_000_000_000,
        world_size=len(files),
        position=8 * STEP,
        torch_version="2",
        loss=0.5,
        longest_save_s=0.1,
        files=tuple(files),
    )


def committed(folder: Path, fence: int) -> str:
    """The names of the generations after a save under this fence, or the error's name."""
    generation = Generation(STEP, fence)
    generations.prepare(folder, generation)
    files = [generations.write_part(folder, generation, 0, dump)]
    try:
        generations.commit(folder, about(fence, files))
    except StaleFenceError as error:
        return type(error).__name__
    return " ".join(path.name for path in (folder / generation.name).parent.glob("gen-*"))


def begun(folder: Path, fence: int) -> str:
    """What the fence's file holds after an attempt began, or the error's name."""
    try:
        fences.begin(folder, fence)
    except StaleFenceError as error:
        return type(error).__name__
    return f"{FENCE} holds {(folder / FENCE).read_text()}"


def test_a_save_changes_the_folder_as_the_example_shows(tmp_path: Path) -> None:
    fences.begin(tmp_path, 7)
    generation = Generation(STEP, 7)
    files: list[FileRecord] = []
    calls: dict[str, Callable[[], object]] = {
        "prepare": lambda: generations.prepare(tmp_path, generation),
        "write_part of rank 0": lambda: files.append(generations.write_part(tmp_path, generation, 0, dump)),
        "write_part of rank 1": lambda: files.append(generations.write_part(tmp_path, generation, 1, dump)),
        "commit": lambda: generations.commit(tmp_path, about(7, files)),
    }
    place = (tmp_path / generation.name).parent

    shown = example(generations)
    assert [call for call, *_ in shown] == list(calls)
    for call, *paths in shown:
        calls[call]()
        leaves = [path for path in place.rglob("*") if path.is_file() or not any(path.iterdir())]
        assert sorted(str(path.relative_to(place)) for path in leaves) == paths
        is_committed = call == "commit"
        assert generations.list_generations(tmp_path) == ([generation] if is_committed else [])


def test_what_a_host_left_before_the_rename_is_removed_by_the_next_attempt(tmp_path: Path) -> None:
    generation = Generation(STEP, 7)
    generations.prepare(tmp_path, generation)
    generations.write_part(tmp_path, generation, 0, dump)
    assert generations.half_written(tmp_path) == [(STEP, 7)]
    generations.abandon_older(tmp_path, 8)
    assert list(tmp_path.iterdir()) == []


def test_an_older_attempt_is_stopped_as_the_example_shows(tmp_path: Path) -> None:
    calls = {"begin": begun, "commit": committed}
    for call, outcome in example(fences):
        name, _, fence = call.partition(" ")
        assert calls[name](tmp_path, int(fence)) == outcome, call
