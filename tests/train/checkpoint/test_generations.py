"""Generations on disk: complete or not there, and never used when one byte is not as it was saved."""

import json
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from muster.train.checkpoint import fences, generations, manifest, retention
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST, FileRecord, Manifest, UnusableError
from muster.train.runtime.durable_files import HashingFile, write_durably


def about(step: int, fence: int, files: Sequence[FileRecord]) -> Manifest:
    return Manifest(
        step=step,
        fence=fence,
        attempt_id="att_1",
        committed_at_unix_ms=1_700_000_000_000,
        world_size=len(files),
        position=8 * step,
        torch_version="2",
        loss=0.5,
        longest_save_s=0.1,
        files=tuple(files),
    )


def commit(folder: Path, step: int, fence: int = 1) -> Generation:
    generation = Generation(step, fence)
    generations.prepare(folder, generation)
    content = b"weights" * 100
    files = [generations.write_part(folder, generation, rank, part(content + bytes([rank]))) for rank in range(2)]
    generations.commit(folder, about(step, fence, files))
    return generation


def part(content: bytes) -> Callable[[HashingFile], None]:
    def dump(file: HashingFile) -> None:
        file.write(content)

    return dump


def names(found: Sequence[Generation]) -> list[str]:
    return [generation.name for generation in found]


def test_what_was_committed_verifies(tmp_path: Path) -> None:
    generation = commit(tmp_path, 40, 7)
    assert generation.name == "step-00000040/gen-7"
    found = generations.verify(tmp_path, generation)
    assert (found.step, found.fence, found.world_size, found.position, found.loss) == (40, 7, 2, 320, 0.5)
    assert [len(part) for part in generations.verified_parts(tmp_path, found)] == [701, 701]


@pytest.mark.parametrize("name", ["rank-00000.pt", "rank-00001.pt", MANIFEST])
def test_one_flipped_bit_anywhere_is_found(tmp_path: Path, name: str) -> None:
    generation = commit(tmp_path, 1)
    path = tmp_path / generation.name / name
    whole = path.read_bytes()
    for position in range(0, len(whole), 37):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(UnusableError) as found:
            generations.verify(tmp_path, generation)
        assert found.value.is_damage
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
    with pytest.raises(UnusableError, match="cannot be read") as found:
        generations.verify(tmp_path, generation)
    assert found.value.is_damage


def test_no_bytes_are_handed_out_before_their_hash_fits(tmp_path: Path) -> None:
    generation = commit(tmp_path, 1)
    found = generations.read_manifest(tmp_path, generation)
    (tmp_path / generation.name / "rank-00001.pt").write_bytes(b"evil" * 175 + b".")
    parts = generations.verified_parts(tmp_path, found)
    assert len(next(parts)) == 701
    with pytest.raises(UnusableError, match="differs from what was saved"):
        next(parts)


def test_a_generation_under_another_name_is_refused(tmp_path: Path) -> None:
    generation = commit(tmp_path, 1)
    (tmp_path / generation.name).rename(tmp_path / "step-00000001" / "gen-9")
    with pytest.raises(UnusableError, match="about step 1, fence 1"):
        generations.verify(tmp_path, Generation(1, 9))


def file(rank: int, name: str = "") -> FileRecord:
    return FileRecord(name or manifest.file_name(rank), rank, 1, "0" * 64)


@pytest.mark.parametrize(
    "files", [[], [file(1)], [file(0), file(0)], [file(0, "../../FENCE")]], ids=["none", "gap", "twice", "elsewhere"]
)
def test_a_manifest_must_name_one_file_of_each_rank(files: list[FileRecord]) -> None:
    document = about(1, 1, files or [file(0)])
    content = manifest.dump(document if files else about(1, 1, []))
    if not files:
        assert manifest.parse(content).files == ()
        return
    with pytest.raises(UnusableError):
        manifest.parse(content)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": 1}', b"\xff\xfe", b"{" * 50])
def test_what_is_no_manifest_is_unusable_and_no_crash(content: bytes) -> None:
    with pytest.raises(UnusableError):
        manifest.parse(content)


def rewritten(content: bytes, **changed: object) -> bytes:
    """As another runtime would have written it: None leaves a field out."""
    document = {name: value for name, value in json.loads(content).items() if name != "self_sha256"}
    document = {name: value for name, value in {**document, **changed}.items() if value is not None}
    return json.dumps({**document, "self_sha256": manifest._self_hash(document)}).encode()


def test_a_newer_runtimes_manifest_may_state_more_and_a_newer_schema_is_refused_by_name_and_no_damage() -> None:
    content = manifest.dump(about(1, 1, [file(0)]))
    assert manifest.parse(rewritten(content, mood="fine")).step == 1
    for unknown in (manifest.NEWEST_SCHEMA + 1, 0, "2", [1]):
        with pytest.raises(UnusableError) as found:
            manifest.parse(rewritten(content, schema=unknown))
        assert not found.value.is_damage
        assert (
            f"is of schema {unknown!r}, and this muster.train reads 1 to {manifest.NEWEST_SCHEMA}: a newer one"
            in str(found.value)
        )


def test_a_manifest_without_a_schema_is_of_the_first() -> None:
    content = manifest.dump(about(1, 1, [file(0)]))
    assert manifest.parse(rewritten(content, schema=None)) == manifest.parse(content)


def test_a_schema_that_was_changed_on_the_disk_is_damage_and_no_newer_runtimes() -> None:
    content = manifest.dump(about(1, 1, [file(0)])).replace(b'"schema": 1', b'"schema": 9')
    with pytest.raises(UnusableError, match="was changed after it was written") as found:
        manifest.parse(content)
    assert found.value.is_damage


def test_a_manifest_names_the_lowest_schema_that_states_all_so_that_older_runtimes_use_what_they_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = about(1, 1, [file(0)])
    kinds = [plain, replace(plain, key_id="k"), replace(plain, key_id="k", has_sharded_extras=True)]
    contents = [manifest.dump(each) for each in kinds]
    assert [json.loads(content)["schema"] for content in contents] == [1, 2, 3]
    assert [manifest.parse(content) for content in contents] == kinds
    monkeypatch.setattr(manifest, "NEWEST_SCHEMA", 2)
    assert [manifest.parse(content) for content in contents[:2]] == kinds[:2]
    with pytest.raises(UnusableError, match=r"of schema 3, and this muster\.train reads 1 to 2"):
        manifest.parse(contents[2])


def test_a_torn_generation_has_no_name_and_goes_when_a_later_attempt_begins(tmp_path: Path) -> None:
    commit(tmp_path, 1)
    for step, fence in ((1, 1), (2, 1), (3, 5)):
        generations.prepare(tmp_path, Generation(step, fence))
        generations.write_part(tmp_path, Generation(step, fence), 0, part(b"half"))
    assert names(generations.list_generations(tmp_path)) == ["step-00000001/gen-1"]
    generations.abandon_older(tmp_path, 5)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("step-*/*"))
    assert left == ["step-00000001/gen-1", "step-00000003/.gen-5.partial"]
    assert not (tmp_path / "step-00000002").exists()


def test_an_older_fence_commits_nothing_and_nothing_is_written_twice(tmp_path: Path) -> None:
    commit(tmp_path, 1, fence=5)
    with pytest.raises(FileExistsError):
        commit(tmp_path, 1, fence=5)
    assert fences.begin(tmp_path, 6) == 6
    assert fences.begin(tmp_path, 6) == 6
    with pytest.raises(StaleFenceError, match="fence 5 is older than 6"):
        fences.begin(tmp_path, 5)
    with pytest.raises(StaleFenceError, match="fence 6 has begun, 5 may commit nothing"):
        commit(tmp_path, 2, fence=5)
    assert fences.begin(tmp_path, None) == 7, "a rank without a given fence takes the next"
    assert names(generations.list_generations(tmp_path)) == ["step-00000001/gen-5"]


def test_the_fence_of_release_0_1_0_counts_and_gets_its_check(tmp_path: Path) -> None:
    (tmp_path / fences.FENCE).write_text("6")
    assert fences.highest_fence(tmp_path) == 6
    assert fences.begin(tmp_path, 6) == 6
    for number in range(7, 12):  # a file system may give the inode again to every second file
        write_durably(tmp_path / fences.FENCE, str(number).encode())  # as 0.1.0 replaces it, next to our check
        assert fences.highest_fence(tmp_path) == number
    with pytest.raises(StaleFenceError):
        fences.begin(tmp_path, 10)


@pytest.mark.parametrize("name", [fences.FENCE, fences.CHECK])
def test_no_flipped_bit_and_no_loss_of_one_file_changes_the_fence(tmp_path: Path, name: str) -> None:
    assert fences.begin(tmp_path, 12) == 12
    path = tmp_path / name
    whole, found = path.read_bytes(), path.stat()
    places = [(at, 1 << bit) for at in range(len(whole)) for bit in range(8)]
    flipped = [bytes([*whole[:at], whole[at] ^ bit, *whole[at + 1 :]]) for at, bit in places]
    for content in [*flipped, b"", whole[:-1], b"\x00" * len(whole)]:
        path.write_bytes(content)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))  # what flips a bit is no write
        assert fences.highest_fence(tmp_path) == 12, content
    assert fences.begin(tmp_path, 12) == 12
    assert fences._read(tmp_path) == (12, True), "it is whole again"
    path.unlink()
    assert fences.highest_fence(tmp_path) == 12


def test_a_death_between_the_fence_and_its_check_leaves_the_newer(tmp_path: Path) -> None:
    fences.begin(tmp_path, 4)
    before = (tmp_path / fences.CHECK).read_bytes()
    fences.begin(tmp_path, 5)
    (tmp_path / fences.CHECK).write_bytes(before)
    assert fences.highest_fence(tmp_path) == 5


def in_place_of(kind: str, path: Path) -> None:
    """Put something that is no regular file of the saved size in a file's place."""
    content = path.read_bytes()
    path.unlink()
    if kind == "link":
        path.with_name("aside").write_bytes(content)
        path.symlink_to("aside")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 40 << 30)


@pytest.mark.parametrize("kind", ["link", "device", "pipe", "folder", "40 GB without content"])
@pytest.mark.parametrize("name", ["rank-00001.pt", MANIFEST])
def test_only_a_regular_file_of_the_saved_size_is_read(tmp_path: Path, kind: str, name: str) -> None:
    """A pipe would wait without end, and a device or a sparse file would fill the memory."""
    generation = commit(tmp_path, 10)
    found = generations.read_manifest(tmp_path, generation)
    in_place_of(kind, tmp_path / generation.name / name)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (1 << 30), limits[1]))
    try:
        with pytest.raises(UnusableError, match=name):
            generations.verify(tmp_path, generation)
        with pytest.raises(UnusableError, match=name):
            generations.measured(tmp_path, generation)
        if name != MANIFEST:
            with pytest.raises(UnusableError, match=name):
                generations.verified_part(tmp_path, found, found.files[1])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize("kind", ["device", "pipe", "40 GB without content"])
def test_a_fence_that_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    fences.begin(tmp_path, 3)
    in_place_of(kind, tmp_path / fences.FENCE)
    assert fences.highest_fence(tmp_path) == 3
    (tmp_path / fences.CHECK).unlink()
    with pytest.raises(OSError, match="FENCE"):
        fences.begin(tmp_path, 4)


def test_a_fence_that_is_no_number_lets_none_write(tmp_path: Path) -> None:
    (tmp_path / fences.FENCE).write_bytes(b"\xff7")
    with pytest.raises(OSError, match="instead of a number"):
        fences.begin(tmp_path, 8)


def test_a_file_that_rank_0_does_not_see_is_never_committed(tmp_path: Path) -> None:
    generation = Generation(1, 1)
    generations.prepare(tmp_path, generation)
    own = generations.write_part(tmp_path, generation, 0, part(b"weights"))
    with pytest.raises(FileNotFoundError):
        generations.commit(tmp_path, about(1, 1, [own, file(1)]))
    assert generations.list_generations(tmp_path) == []


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
    heard_of = generations.candidates(found, "step-00000020/gen-1", refused, may_be_newer=True)
    assert names(heard_of) == ["step-00000020/gen-2", "step-00000010/gen-1"], "what is newer, and nothing refused"


def removed(
    steps: Sequence[int],
    keep: int,
    *,
    verified: Sequence[int],
    good: Sequence[int] = (),
    aged: Sequence[int] = (),
    refused: Sequence[int] = (),
    passed_over: Sequence[int] = (),
) -> list[int]:
    def named(chosen: Sequence[int]) -> frozenset[str]:
        return frozenset(Generation(step, 1).name for step in chosen)

    found = [Generation(step, 1) for step in sorted(steps, reverse=True)]
    marks = retention.GenerationMarks(
        verified=named(verified),
        good=named(good),
        aged=named(aged),
        refused=named(refused),
        passed_over=named(passed_over),
    )
    gone = retention.to_remove(found, keep, marks, fence=1)
    return [generation.step for generation in gone]


def test_retention_keeps_the_newest_the_newest_verified_and_the_newest_good_one() -> None:
    steps = [10, 20, 30, 40, 50]
    assert removed(steps, 2, verified=[50, 40]) == [30, 20, 10]
    assert removed(steps, 2, verified=[10]) == [30, 20], "the newest that was read back equal"
    assert removed(steps, 2, verified=[]) == [], "none goes before one is known to be whole"
    assert removed(steps, 2, verified=[50], good=[20, 10]) == [30, 10]


def test_one_always_stays_long_enough_to_become_good() -> None:
    """Saved each step, good after 20: with three kept, none would ever get there."""
    verified, good, stay = list[int](), list[int](), list[int]()
    for step in range(1, 200):
        stay.append(step)
        verified.append(step)
        good += [old for old in stay if old in verified and old + 20 <= step and old not in good]
        gone = removed(stay, 3, verified=verified, good=good, aged=good)
        stay = [old for old in stay if old not in gone]
        assert len(stay) <= 5
        if step > 21:
            assert max(good) in stay
            assert max(good) >= step - 42


def test_one_from_before_a_fault_that_is_found_late_always_stays() -> None:
    """Saved each second, found after at most 60 s: three kept would all be in doubt."""
    stay = list[int]()
    for now_s in range(1, 500):
        stay.append(now_s)
        aged = [old for old in stay if old + 60 <= now_s]
        gone = removed(stay, 3, verified=stay, good=stay, aged=aged)
        stay = [old for old in stay if old not in gone]
        assert len(stay) <= 5
        assert now_s <= 60 or any(old + 60 <= now_s for old in stay)


def test_age_is_by_the_manifest_on_disk(tmp_path: Path) -> None:
    old, young = Generation(10, 1), Generation(20, 1)
    for generation, written_s in ((old, 1000.0), (young, 1050.0)):
        place = tmp_path / generation.name
        place.mkdir(parents=True)
        (place / MANIFEST).touch()
        os.utime(place / MANIFEST, (written_s, written_s))
    gone = Generation(5, 1)
    assert retention.aged_ones(tmp_path, [old, young, gone], 60.0, 1060.0) == {old.name}


def test_what_an_earlier_attempt_left_does_not_take_the_place_of_what_becomes_good() -> None:
    found = [Generation(40, 2), Generation(30, 2), Generation(20, 2), Generation(10, 1)]
    gone = retention.to_remove(found, 1, retention.GenerationMarks(frozenset(names(found))), fence=2)
    assert names(gone) == ["step-00000030/gen-2", "step-00000010/gen-1"]


def test_what_is_refused_goes_once_there_is_a_verified_one_and_what_was_passed_over_stays() -> None:
    steps = [10, 20, 30]
    assert removed(steps, 3, verified=[], refused=[30, 20]) == []
    assert removed(steps, 3, verified=[10], refused=[30, 20]) == [30, 20]
    assert removed([10, 20, 30, 40], 1, verified=[20, 10], passed_over=[40, 30]) == []
    assert removed([5, 10, 20, 30, 40], 1, verified=[20], passed_over=[40, 30]) == [10, 5]


def test_what_is_pinned_never_goes_whatever_is_stated_of_it() -> None:
    found = [Generation(step, 1) for step in (50, 40, 30, 20, 10)]
    verified = frozenset(names(found[:2]))

    def gone(pinned: Sequence[Generation]) -> list[str]:
        marks = retention.GenerationMarks(verified, refused=frozenset({found[3].name}), pinned=frozenset(names(pinned)))
        return names(retention.to_remove(found, 1, marks, fence=1))

    assert gone([]) == names([found[2], found[4], found[3]])
    assert gone([found[3], found[4]]) == names([found[2]]), "a refused one too: a person may inspect it"


def test_removal_takes_the_manifest_first_and_leaves_other_generations_of_the_step(tmp_path: Path) -> None:
    old, other = commit(tmp_path, 1, 1), commit(tmp_path, 1, 2)
    retention.mark(tmp_path, other, retention.GOOD)
    assert retention.marked_ones(tmp_path, retention.GOOD) == {other.name}
    retention.remove(tmp_path, [old])
    assert names(generations.list_generations(tmp_path)) == [other.name]
    retention.remove(tmp_path, [other])
    assert not (tmp_path / "step-00000001").exists()
