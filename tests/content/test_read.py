"""A work folder as its owner has it: rules of paths to leave out, limits, odd files, and changes while it is read."""

import os
import stat
from pathlib import Path

import pytest

from muster.content import read
from muster.content.faults import FolderError, FolderTooLargeError
from muster.content.manifest import CHUNK_BYTES, Entry, Kind, digest_of
from muster.content.read import Bundle, read_chunk, read_folder
from muster.content.scan import MANY_FILES, Found, Limits, Scan, scan


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def settle(folder: Path) -> None:
    """Date every file back by an hour, as files of a work folder usually are. The change time stays: see ``margin``."""
    for path in folder.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def paths(bundle: Bundle) -> list[str]:
    return [entry.path for entry in bundle.manifest.entries]


@pytest.fixture(name="no_margin")
def fixture_no_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a test are too new to be trusted: the margin is tried on its own."""
    monkeypatch.setattr(read, "_MARGIN_NS", -(10**18))


def test_the_rules_of_git_count_in_both_files_and_the_nearest_last_rule_wins(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {
            ".gitignore": "*.log\n/data/\n",
            ".musterignore": "!/data/\n/data/raw/\n",
            "train.py": "",
            "a.log": "",
            "data/x": "",
            "data/raw/y": "",
            "sub/.gitignore": "!kept.log\n/data\n",
            "sub/kept.log": "",
            "sub/b.log": "",
            "sub/data/z": "",
        },
    )
    assert paths(read_folder(tmp_path)) == [
        ".gitignore",
        ".musterignore",
        "data/x",
        "sub/.gitignore",
        "sub/kept.log",
        "train.py",
    ]


def test_repositories_caches_and_virtual_environments_are_left_out(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {".git/config": "", "__pycache__/a.pyc": "", "b.pyc": "", ".DS_Store": "", "env/pyvenv.cfg": "", "env/x": ""},
    )
    bundle = read_folder(fill(tmp_path, {"kept/.git/x": "", "kept/.musterignore": "!.git/", "main.py": ""}))
    assert paths(bundle) == ["kept/.git/x", "kept/.musterignore", "main.py"]
    assert bundle.scan.left_out == ["env"]


def test_links_empty_folders_and_programs_are_kept_as_such(tmp_path: Path) -> None:
    fill(tmp_path, {"run": "#!/bin/sh", "src/a": "1"})
    (tmp_path / "run").chmod(0o700)
    (tmp_path / "logs").mkdir()
    (tmp_path / "src/up").symlink_to("../run")
    assert read_folder(tmp_path).manifest.entries == (
        Entry("logs", Kind.FOLDER, 0, ()),
        Entry("run", Kind.PROGRAM, 9, (digest_of(b"#!/bin/sh"),)),
        Entry("src/a", Kind.FILE, 1, (digest_of(b"1"),)),
        Entry("src/up", Kind.LINK, 0, ("../run",)),
    )


def test_owners_times_and_order_of_making_do_not_change_the_digest(tmp_path: Path) -> None:
    one = read_folder(fill(tmp_path / "one", {"b": "2", "a": "1"}))
    fill(tmp_path / "two", {"a": "1", "b": "2"})
    settle(tmp_path / "two")
    (tmp_path / "two/a").chmod(0o640)
    assert read_folder(tmp_path / "two").digest == one.digest


def test_a_chunk_is_read_again_for_the_store_and_one_that_has_changed_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.write(b"x" * CHUNK_BYTES + b"end")
    [entry] = read_folder(tmp_path).manifest.entries
    assert read_chunk(tmp_path, entry, 1) == b"end"
    (tmp_path / "big").write_bytes(b"other")
    with pytest.raises(FolderError, match="big: it has changed since its digest was taken; submit again"):
        read_chunk(tmp_path, entry, 0)
    (tmp_path / "big").unlink()
    with pytest.raises(FolderError, match="big: it cannot be read: No such file"):
        read_chunk(tmp_path, entry, 0)


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (lambda folder: os.mkfifo(folder / "pipe"), "pipe: it is a socket, a pipe or a device"),
        (lambda folder: os.mknod(folder / "s", stat.S_IFSOCK | 0o600), "s: it is a socket, a pipe or a device"),
        (lambda folder: (folder / "l").symlink_to("/etc/passwd"), "l → /etc/passwd: it leads to an absolute path"),
        (lambda folder: (folder / "l").symlink_to("../x"), r"l → ../x: it leads out of the folder; copy the file"),
        (lambda folder: (folder / "a\nb").touch(), r"a\\nb: its name has a control character.*rename it"),
        (lambda folder: os.close(os.open(os.fsencode(folder) + b"/\xff", os.O_CREAT)), r"\\udcff: its name has"),
        (lambda folder: (folder / ".musterignore").write_bytes(b"\xff"), r".musterignore: its patterns cannot be read"),
    ],
)
def test_a_path_that_no_host_can_have_is_named_with_what_to_do(tmp_path: Path, make: object, fault: str) -> None:
    assert callable(make)
    make(tmp_path)
    with pytest.raises(FolderError, match=fault):
        read_folder(tmp_path)


def test_a_device_is_named_and_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        os.mknod(tmp_path / "tape", stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("a device was opened"))
    with pytest.raises(FolderError, match="tape: it is a socket, a pipe or a device; name it in"):
        read_folder(tmp_path)


def test_an_odd_path_that_is_left_out_is_no_fault(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert paths(read_folder(fill(tmp_path, {".musterignore": "pipe\n"}))) == [".musterignore"]


def test_a_folder_that_is_too_large_is_refused_unread_and_its_largest_files_are_named(tmp_path: Path) -> None:
    fill(tmp_path, {"small": "x", "big/model.bin": "x" * 900, "big/other": "x" * 200})
    with pytest.raises(FolderTooLargeError, match=r"has 1.1 kB, and 1 kB are.*big/model.bin \(900 B\), big/other"):
        read_folder(tmp_path, limits=Limits(max_bytes=1000))


def test_a_folder_of_too_many_files_names_where_they_lie(tmp_path: Path) -> None:
    fill(tmp_path, {f"images/{number}": "" for number in range(20)})
    with pytest.raises(FolderTooLargeError, match=r"more than the 10 files.*images \(11\).*musterignore"):
        scan(tmp_path, Limits(max_files=10))


def test_many_files_are_accepted_with_a_warning() -> None:
    many = Scan([Found(f"images/{number}", Kind.FILE) for number in range(MANY_FILES)])
    [warning] = many.warnings()
    assert warning == "100,000 files make each start slow, 100,000 of them in images; pack them into archives"
    assert not Scan(many.found[1:]).warnings()


@pytest.mark.usefixtures("no_margin")
def test_an_unchanged_folder_is_read_once_and_only_changed_files_again(tmp_path: Path) -> None:
    folder, cache = fill(tmp_path / "work", {"a": "one", "b": "two"}), tmp_path / "cache/of-work"
    first = read_folder(folder, cache=cache)
    again = read_folder(folder, cache=cache)
    assert (first.num_read, again.num_read, again.digest) == (6, 0, first.digest)
    (folder / "b").write_text("TWO!", encoding="utf-8")
    third = read_folder(folder, cache=cache)
    assert third.num_read == 4
    assert third.digest == read_folder(folder).digest != first.digest


@pytest.mark.usefixtures("no_margin")
@pytest.mark.parametrize("content", [b"", b"{}", b'{"version":9}', b"\xff\x00"])
def test_a_damaged_cache_costs_only_time(tmp_path: Path, content: bytes) -> None:
    folder, cache = fill(tmp_path / "work", {"a": "one"}), tmp_path / "cache"
    cache.write_bytes(content)
    assert read_folder(folder, cache=cache).num_read == 3
    assert read_folder(folder, cache=cache).num_read == 0


def test_a_file_of_the_last_seconds_is_read_again_since_its_time_stamp_may_hide_a_change(tmp_path: Path) -> None:
    folder, cache = fill(tmp_path / "work", {"a": "one"}), tmp_path / "cache"
    settle(folder)  # the change time shows that it is new: its writer cannot set that one
    assert read_folder(folder, cache=cache).num_read == 3
    assert read_folder(folder, cache=cache).num_read == 3


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    folder = fill(tmp_path / "work", {"a": "one"})
    (tmp_path / "blocked").touch()
    assert read_folder(folder, cache=tmp_path / "blocked/cache").num_read == 3


@pytest.mark.parametrize("num_changes", [2, 3])
def test_a_file_that_changes_while_it_is_read_is_read_again_and_refused_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_changes: int
) -> None:
    fill(tmp_path, {"a.log": "one"})
    changes = iter(range(num_changes))

    def writes_meanwhile(content: bytes) -> str:
        if next(changes, None) is not None:
            with (tmp_path / "a.log").open("a", encoding="utf-8") as file:
                file.write("x")
        return digest_of(content)

    monkeypatch.setattr(read, "digest_of", writes_meanwhile)
    if num_changes == 3:
        with pytest.raises(FolderError, match=r"a.log: it changes while it is read; stop its writer"):
            read_folder(tmp_path)
        return
    [entry] = read_folder(tmp_path).manifest.entries
    assert entry == Entry("a.log", Kind.FILE, 5, (digest_of(b"onexx"),))


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, {"a": "one"})

    def swapped(folder: Path, limits: Limits | None, *, takes_all: bool) -> Scan:
        found = scan(folder, limits, takes_all=takes_all)
        (folder / "a").unlink()
        os.mkfifo(folder / "a")
        return found

    monkeypatch.setattr(read, "scan", swapped)
    with pytest.raises(FolderError, match="a: it"):
        read_folder(tmp_path)
