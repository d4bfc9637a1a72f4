"""A work folder goes whole, and nothing outside of it, whatever the job's programs do at the same time."""

import os
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from workers.host.content.places import REMOVED
from workers.host.content.removal import remove_work_folder, sweep_removed


class Listing:
    """What ``os.scandir`` returns."""

    def __init__(self, found: Iterable[os.DirEntry[str]]) -> None:
        self._rest = iter(found)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> os.DirEntry[str]:
        return next(self._rest)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "state" / "work" / "att_1"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "passwd").write_text("the job's")
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that no job may change."""
    folder = tmp_path / "etc"
    folder.mkdir(mode=0o755)
    (folder / "passwd").write_text("the host's")
    folder.chmod(0o751)
    return folder


def is_unchanged(outside: Path) -> bool:
    return (outside / "passwd").read_text() == "the host's" and outside.stat().st_mode & 0o777 == 0o751


def left(work: Path) -> list[str]:
    return [path.name for path in (*work.parent.iterdir(), *(work.parent.parent / REMOVED).iterdir())]


def test_a_folder_goes_with_links_and_what_is_closed_and_none_is_no_error(work: Path, outside: Path) -> None:
    (work / "link").symlink_to(outside)
    (work / "inner" / "closed").mkdir()
    (work / "inner" / "closed" / "file").write_text("x")
    (work / "inner" / "closed").chmod(0)
    (work / "inner").chmod(0o500)
    work.chmod(0)
    remove_work_folder(work)
    assert (left(work), is_unchanged(outside)) == ([], True)
    remove_work_folder(work)
    remove_work_folder(work.parent.parent / "none" / "work" / "att_1")


def test_a_link_in_the_place_of_a_work_folder_goes_alone(work: Path, outside: Path) -> None:
    other = work.with_name("att_2")
    other.symlink_to(outside)
    remove_work_folder(other)
    assert (left(work), is_unchanged(outside)) == ([work.name], True)


def test_no_depth_of_folders_is_too_large(work: Path) -> None:
    """Deeper than the paths, open files and calls that a process may have."""
    descriptor = os.open(work, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=descriptor)
        below = os.open("deeper", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    try:
        remove_work_folder(work)
        assert left(work) == []
    finally:  # pytest could not remove it
        subprocess.run(["/bin/rm", "-rf", work.parent.parent], check=True)


def test_a_folder_that_is_swapped_for_a_link_after_it_was_listed_leads_nowhere(
    work: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each listing of the folder finds it, and right after it a link is in its place."""
    listed, away = os.scandir, work.parent.parent / "away"

    def scandir(path: Any) -> Listing:
        if away.exists():
            with suppress(FileNotFoundError):
                (work / "inner").unlink()
                away.rename(work / "inner")
        with listed(path) as listing:
            found = list(listing)
        if any(child.name == "passwd" for child in found):
            with suppress(FileNotFoundError):
                (work / "inner").rename(away)
                (work / "inner").symlink_to(outside)
        return Listing(found)

    monkeypatch.setattr(os, "scandir", scandir)
    with suppress(OSError):
        remove_work_folder(work)
    assert is_unchanged(outside)


def test_a_program_that_holds_the_folder_open_can_send_the_removal_nowhere(
    work: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts a link in the place of a folder in the moment in which that is to be removed."""
    held = os.open(work, os.O_RDONLY)
    moved = os.rename
    away = work.parent.parent / "away"

    def rename(name: str, *given: Any, **where: Any) -> None:
        if name == "inner":
            moved("inner", away, src_dir_fd=held)
            os.symlink(outside, "inner", dir_fd=held)
        moved(name, *given, **where)

    monkeypatch.setattr(os, "rename", rename)
    remove_work_folder(work)
    os.close(held)
    assert away.is_dir(), "the program had its moment"
    assert (left(work), is_unchanged(outside)) == ([], True)


def test_a_removal_that_was_killed_is_completed(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state_dir = work.parent.parent

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", die)
        with pytest.raises(KeyboardInterrupt):
            remove_work_folder(work)
    assert left(work) != []
    assert (state_dir / REMOVED).stat().st_mode & 0o777 == 0o700
    sweep_removed(state_dir)
    assert left(work) == []
