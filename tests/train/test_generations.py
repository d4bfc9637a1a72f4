"""Generations on disk: complete or not there, and never used when one byte is not as it was saved."""

import json
import os
from pathlib import Path

import pytest

from muster.train import generations
from muster.train.generations import MANIFEST, FileRecord, Generation, UnusableError


def commit(folder: Path, step: int, fence: int = 1, content: bytes = b"weights" * 100) -> Generation:
    generation = Generation(step, fence)
    place = generations.partial_folder(folder, generation)
    files = [generations.write_file(place, f"rank-{rank:05d}.pt", content + bytes([rank])) for rank in range(2)]
    generations.commit(folder, generation, files, {"world_size": 2})
    return generation


def names(found: list[Generation]) -> list[str]:
    return [generation.name for generation in found]


def test_what_was_committed_verifies(tmp_path: Path) -> None:
    generation = commit(tmp_path, 40, 7)
    assert generation.name == "step-00000040/gen-7"
    manifest = generations.verify(tmp_path, generation)
    assert (manifest["step"], manifest["fence"], manifest["world_size"]) == (40, 7, 2)


@pytest.mark.parametrize("name", ["rank-00000.pt", "rank-00001.pt", MANIFEST])
def test_one_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    generation = commit(tmp_path, 1)
    path = tmp_path / generation.name / name
    whole = path.read_bytes()
    for position in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UnusableError):
            generations.verify(tmp_path, generation)
    path.write_bytes(whole)
    generations.verify(tmp_path, generation)


@pytest.mark.parametrize("name", ["rank-00000.pt", MANIFEST])
def test_a_truncated_or_missing_file_is_found(tmp_path: Path, name: str) -> None:
    generation = commit(tmp_path, 1)
    path = tmp_path / generation.name / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UnusableError):
        generations.verify(tmp_path, generation)
    path.unlink()
    with pytest.raises(UnusableError, match="cannot be read"):
        generations.verify(tmp_path, generation)


def test_a_generation_under_another_name_is_refused(tmp_path: Path) -> None:
    generation = commit(tmp_path, 1)
    (tmp_path / generation.name).rename(tmp_path / "step-00000001" / "gen-9")
    with pytest.raises(UnusableError, match="about step 1, fence 1"):
        generations.verify(tmp_path, Generation(1, 9))


def test_a_torn_generation_has_no_name(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    place = generations.partial_folder(tmp_path, Generation(2, 1))
    generations.write_file(place, "rank-00000.pt", b"half")
    assert names(generations.list_generations(tmp_path)) == ["step-00000001/gen-1"]


def test_an_older_fence_commits_nothing_and_nothing_is_written_twice(tmp_path: Path) -> None:
    commit(tmp_path, 1, fence=5)
    with pytest.raises(UnusableError, match="exists already"):
        commit(tmp_path, 1, fence=5)
    assert generations.raise_fence(tmp_path, 6)
    assert generations.raise_fence(tmp_path, 6)
    assert not generations.raise_fence(tmp_path, 5)
    with pytest.raises(UnusableError, match="newer attempt"):
        commit(tmp_path, 2, fence=5)
    assert names(generations.list_generations(tmp_path)) == ["step-00000001/gen-5"]


def test_the_wanted_one_is_tried_first_then_what_is_older_and_never_what_is_refused(tmp_path: Path) -> None:
    for step, fence in ((10, 1), (20, 1), (30, 1), (20, 2)):
        commit(tmp_path, step, fence)
    found = generations.list_generations(tmp_path)
    assert names(found) == [
        "step-00000030/gen-1",
        "step-00000020/gen-2",
        "step-00000020/gen-1",
        "step-00000010/gen-1",
    ]
    refused = frozenset({"step-00000020/gen-1", "step-00000030/gen-1"})
    assert names(generations.candidates(found, None, refused)) == ["step-00000020/gen-2", "step-00000010/gen-1"]
    wanted = generations.candidates(found, "step-00000020/gen-1", frozenset())
    assert names(wanted) == ["step-00000020/gen-1", "step-00000010/gen-1"]


def test_retention_keeps_the_newest_and_the_newest_verified_one(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        commit(tmp_path, step)
    verified = frozenset({"step-00000010/gen-1"})
    gone = generations.retain(tmp_path, 2, verified=verified, refused=frozenset())
    assert names(gone) == ["step-00000020/gen-1"]
    kept = ["step-00000040/gen-1", "step-00000030/gen-1", "step-00000010/gen-1"]
    assert names(generations.list_generations(tmp_path)) == kept
    assert not (tmp_path / "step-00000020").exists()


def test_what_is_refused_goes_once_there_is_a_verified_one(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        commit(tmp_path, step)
    tainted = frozenset({"step-00000030/gen-1", "step-00000020/gen-1"})
    assert generations.retain(tmp_path, 3, verified=frozenset(), refused=tainted) == []
    generations.retain(tmp_path, 3, verified=frozenset({"step-00000010/gen-1"}), refused=tainted)
    assert names(generations.list_generations(tmp_path)) == ["step-00000010/gen-1"]


def test_a_full_disk_is_an_error_and_leaves_no_generation(tmp_path: Path) -> None:
    generation = Generation(1, 1)
    place = generations.partial_folder(tmp_path, generation)
    place.chmod(0o500)
    missing = [FileRecord("rank-00000.pt", 1, "0" * 64)]
    (place / "in-the-way").mkdir(mode=0o700) if os.access(place, os.W_OK) else None
    if os.geteuid() == 0:  # root writes everywhere: take the folder away instead
        place.rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=MANIFEST):
        generations.commit(tmp_path, generation, missing, {})
    assert generations.list_generations(tmp_path) == []


def test_a_manifest_is_plain_json_without_any_pickle(tmp_path: Path) -> None:
    generation = commit(tmp_path, 1)
    document = json.loads((tmp_path / generation.name / MANIFEST).read_text(encoding="utf-8"))
    assert document["files"][0]["name"] == "rank-00000.pt"
