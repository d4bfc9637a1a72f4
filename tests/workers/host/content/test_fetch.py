"""One copy of a bundle a host: fetched once, found right or fetched again, and never written by a program."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec import structs

from muster.content.faults import DamagedError
from muster.content.manifest import CHUNK_BYTES, digest_of
from muster.content.tree import remove_folder
from workers.host.content import copies
from workers.host.content.chunks import Save
from workers.host.content.faults import BrokenBundleError, NoRoomError
from workers.host.content.removal import remove_work_folder
from workers.host.content.whole_copy import Limits

from .bundle_case import BundleSource, HostDisk, content_of, source_of, write_folder

LARGE = bytes(range(256)) * (CHUNK_BYTES // 256) + b"the end of it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_folder(tmp_path / "own", train=b"print(1)", data__a=LARGE, data__b=LARGE, zero=bytes(CHUNK_BYTES))
    (folder / "train").chmod(0o755)
    (folder / "latest").symlink_to("data/a")
    (folder / "empty" / "below").mkdir(parents=True)
    return folder


def wanted(source: BundleSource) -> list[str]:
    """What has to be fetched: a chunk of zeros is there with the file's size."""
    return sorted(set(source.content) - {digest_of(bytes(CHUNK_BYTES))})


@pytest.fixture
def disk(tmp_path: Path) -> HostDisk:
    return HostDisk(tmp_path / "state")


@pytest.mark.parametrize("are_linked", [True, False])
def test_a_folder_arrives_as_it_was_and_each_chunk_is_fetched_once(
    folder: Path, disk: HostDisk, *, are_linked: bool
) -> None:
    disk.are_linked = are_linked
    digest, source = source_of(folder)
    work = disk.fetch(digest, source)
    assert content_of(work) == content_of(folder)
    assert (work / "latest").readlink() == Path("data/a")
    assert (work / "empty" / "below").is_dir()
    assert stat.S_IMODE((work / "train").stat().st_mode) == 0o555
    assert stat.S_IMODE((work / "zero").stat().st_mode) == 0o444
    assert sorted(source.fetched) == wanted(source)
    (work / "output").write_bytes(b"made by the program")
    other = disk.fetch(digest, source, "att_2")
    assert content_of(other) == content_of(folder)
    assert sorted(source.fetched) == wanted(source)
    assert ((work / "train").stat().st_ino == (other / "train").stat().st_ino) is are_linked


def test_a_fetch_that_was_killed_goes_on_where_it_was(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)
    first = BundleSource(source.content, source.manifest_bytes)

    def die(_: str) -> None:
        if len(first.fetched) == 2:
            raise KeyboardInterrupt

    first.on_chunk = die
    with pytest.raises(KeyboardInterrupt):
        disk.fetch(digest, first)
    assert content_of(disk.fetch(digest, source)) == content_of(folder)
    assert sorted([*first.fetched, *source.fetched]) == wanted(source)


def test_a_new_copy_reads_no_byte_of_its_files(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)
    read_until_fetched: list[int] = []
    source.on_chunk = lambda _: read_until_fetched.append(_num_bytes_read())
    before = _num_bytes_read()
    disk.fetch(digest, source)
    assert read_until_fetched[0] - before < CHUNK_BYTES // 4


def _num_bytes_read() -> int:
    """Return the bytes that this process has read, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_pieces_of_a_chunk_that_never_came_whole_are_written_over(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)

    class CutSource(BundleSource):
        def chunks(self, lacking: Mapping[str, int], save: Save) -> None:
            for one in lacking:
                with save.in_pieces(one) as write:
                    write(b"X" * (lacking[one] // 2))
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        disk.fetch(digest, CutSource(source.content, source.manifest_bytes))
    assert content_of(disk.fetch(digest, source)) == content_of(folder)
    assert sorted(source.fetched) == wanted(source)


def test_bytes_that_a_crash_lost_are_fetched_again(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)

    def die(_: str) -> None:
        if len(source.fetched) == len(wanted(source)) - 1:
            raise KeyboardInterrupt

    source.on_chunk = die
    with pytest.raises(KeyboardInterrupt):
        disk.fetch(digest, source)
    draft = disk.place(digest).draft
    with (draft / "data" / "b").open("r+b") as file:
        file.seek(100)
        file.write(b"torn")
    again = BundleSource(source.content, source.manifest_bytes)
    assert content_of(disk.fetch(digest, again)) == content_of(folder)
    # The other file has the same chunk: only what is nowhere right is fetched.
    assert set(again.fetched) == set(wanted(source)) - set(source.fetched)


def _flip(path: Path) -> None:
    times = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"X")
    path.chmod(stat.S_IMODE(times.st_mode))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a byte": lambda copy: _flip(copy / "train"),
    "cut": lambda copy: _replace(copy / "train", b""),
    "other bytes": lambda copy: _replace(copy / "train", b"print(2)"),
    "gone": lambda copy: _remove(copy / "train"),
    "a link": lambda copy: _as_link(copy / "train"),
    "all": remove_folder,
}


def _open(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()


def _replace(path: Path, content: bytes) -> None:
    _open(path)
    path.write_bytes(content)
    path.chmod(0o555)


def _remove(path: Path) -> None:
    _open(path)


def _as_link(path: Path) -> None:
    _open(path)
    path.symlink_to("data/a")


@pytest.mark.parametrize("are_linked", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_copy_is_found_and_gets_only_what_it_lacks(
    folder: Path, disk: HostDisk, damage: str, *, are_linked: bool
) -> None:
    disk.are_linked = are_linked
    digest, source = source_of(folder)
    running = disk.fetch(digest, source)
    before = (running / "train").stat().st_ino
    DAMAGES[damage](disk.place(digest).copy)
    again = BundleSource(source.content, source.manifest_bytes)
    assert content_of(disk.fetch(digest, again, "att_2")) == content_of(folder)
    assert len(again.fetched) == (len(wanted(source)) if damage == "all" else 1)
    assert (running / "train").stat().st_ino == before, "the repair wrote no file that another attempt shares"


def test_a_copy_of_another_boot_or_of_yesterday_is_read_whole(
    folder: Path, disk: HostDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest, source = source_of(folder)
    disk.fetch(digest, source)
    path = disk.place(digest).copy / "data" / "a"
    status = path.stat()
    _flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    source.fetched.clear()
    disk.fetch(digest, source, "att_2")
    assert source.fetched == [], "by inode, size, times and mode it is unchanged"
    monkeypatch.setattr(copies, "kernel_boot_id", lambda: "another boot")
    assert content_of(disk.fetch(digest, source, "att_3")) == content_of(folder)
    record = copies.record_of(disk.place(digest))
    assert record is not None
    assert record.boot_id == "another boot"
    copies.note(disk.place(digest), structs.replace(record, read_at_ns=record.read_at_ns - 10**18))
    assert content_of(disk.fetch(digest, source, "att_4")) == content_of(folder)
    later = copies.record_of(disk.place(digest))
    assert later is not None
    assert later.read_at_ns >= record.read_at_ns


def test_two_attempts_at_once_fetch_it_once(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)
    begun, may_go_on = threading.Event(), threading.Event()

    def wait(_: str) -> None:
        begun.set()
        assert may_go_on.wait(60)

    source.on_chunk = wait
    threads = [threading.Thread(target=disk.fetch, args=(digest, source, f"att_{number}")) for number in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    may_go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(source.fetched) == wanted(source)
    assert all(content_of(disk.state_dir / "work" / f"att_{number}") == content_of(folder) for number in range(3))


def test_files_and_chunks_of_another_copy_are_not_fetched(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)
    disk.fetch(digest, source)
    (folder / "train").write_bytes(b"print(2)")
    with (folder / "data" / "b").open("ab") as file:
        file.write(b", and more")
    changed, second = source_of(folder)
    work = disk.fetch(changed, second, "att_2")
    assert content_of(work) == content_of(folder)
    assert set(second.fetched) == set(second.content) - set(source.content)
    first, other = disk.place(digest).copy, disk.place(changed).copy
    inodes = {(first / "data" / name).stat().st_ino for name in ("a", "b")}
    assert (other / "data" / "a").stat().st_ino in inodes


def test_the_longest_unused_copies_go_and_none_that_is_in_use(tmp_path: Path) -> None:
    disk = HostDisk(tmp_path / "state", Limits(cache_bytes=250, free_bytes=0))
    found = [source_of(write_folder(tmp_path / name, file=name.encode() * 100)) for name in ("a", "b", "c")]
    for number, (digest, source) in enumerate(found[:2]):
        disk.fetch(digest, source, f"att_{number}")
    disk.fetch(*found[0])  # the second is now the one that is longest unused
    disk.fetch(*found[2])
    assert [disk.place(digest).copy.is_dir() for digest, _ in found] == [True, False, True]
    used = frozenset({disk.place(found[0][0]), disk.place(found[2][0])})
    with pytest.raises(
        NoRoomError,
        match=r"space for bundles and environments is full: 200 B of 250 B are in use, and 100 B are needed",
    ):
        disk.fetch(*found[1], used=used)
    assert [disk.place(digest).copy.is_dir() for digest, _ in found] == [True, False, True]
    with disk.place(found[2][0]).locked(alone=False):
        disk.fetch(*found[1])
    assert [disk.place(digest).copy.is_dir() for digest, _ in found] == [False, True, True]


def test_copies_that_are_not_used_make_room_for_a_work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = HostDisk(tmp_path / "state", are_linked=False)
    first, second = (source_of(write_folder(tmp_path / name, file=name.encode() * 100)) for name in ("a", "b"))

    def free_of_250(_: Path) -> int:
        return 250 - sum(len(path.read_bytes().strip(b"\0")) for path in disk.state_dir.rglob("file"))

    monkeypatch.setattr(copies, "_free_bytes", free_of_250)
    remove_work_folder(disk.fetch(*first))
    with pytest.raises(NoRoomError, match="is full: it has 50 B free, 100 B are needed"):
        disk.fetch(*second, used=frozenset({disk.place(first[0])}))
    assert content_of(disk.fetch(*second)) == {"file": b"b" * 100}
    assert [disk.place(digest).copy.is_dir() for digest, _ in (first, second)] == [False, True]


def test_a_full_disk_is_reported_and_nothing_is_left_on_it(folder: Path, disk: HostDisk) -> None:
    digest, source = source_of(folder)
    disk.limits = Limits(cache_bytes=1 << 40, free_bytes=1 << 60)
    with pytest.raises(NoRoomError, match=r"is full: it has .* free, .* are needed and 1,152,922 TB must stay free"):
        disk.fetch(digest, source)
    assert source.fetched == []
    assert list(copies.copies_on(disk.state_dir / "content")) == []
    disk.limits = Limits(cache_bytes=1 << 40, free_bytes=0)

    def fill(_: str) -> None:
        if len(source.fetched) == 1:
            raise OSError(28, "No space left on device")

    source.on_chunk = fill
    with pytest.raises(NoRoomError, match=f"the disk of {disk.state_dir} is full"):
        disk.fetch(digest, source)
    assert not disk.place(digest).draft.exists()


@pytest.mark.parametrize("content", [b"", b'[1,[["../x",0,0,[]]]]', b"[2,[]]"])
def test_a_manifest_that_is_none_is_the_bundles_fault(disk: HostDisk, content: bytes) -> None:
    with pytest.raises(BrokenBundleError, match="the bundle cannot be used"):
        disk.fetch("0a" * 32, BundleSource({}, content))
    assert not (disk.state_dir / "work").exists()


def test_a_disk_that_changes_what_it_holds_is_the_hosts_fault(
    folder: Path, disk: HostDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.are_linked = False
    digest, source = source_of(folder)
    monkeypatch.setattr("workers.host.content.work_folder.read_right", lambda *_: None)
    with pytest.raises(DamagedError, match="changes while it is read"):
        disk.fetch(digest, source)


def test_killed_at_any_moment_nothing_torn_is_ever_used(folder: Path, disk: HostDisk, tmp_path: Path) -> None:
    """A process fetches and is killed after so many system calls that change the disk; the next one continues."""
    digest, source = source_of(folder)
    for number, (name, content) in enumerate(source.content.items()):
        assert content, (number, name)
    store = write_folder(tmp_path / "store", **source.content, manifest=source.manifest_bytes)
    script = Path(__file__).with_name("dying_fetch.py")
    num_deaths = 0
    for after in range(1, 400):
        command = [sys.executable, str(script), str(store), str(disk.state_dir), digest, str(after)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            break
        assert done.returncode == 77, done.stderr
        num_deaths += 1
    assert num_deaths > 5
    assert content_of(disk.state_dir / "work" / "att_1") == content_of(folder)
