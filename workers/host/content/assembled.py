"""Virtual environments of this host, each assembled once from the copy of a built environment, and its removal.

The copy has archives, and an environment the files that were unpacked from them. Whenever the copy is read again, so
are they: an environment counts for no longer than a copy does.

One is in ``environments/TENANT``, which programs reach and cannot list, as ``DIGEST.NUMBER``: another number with each
assembly, so that a program which runs keeps the one that it began with. It counts while there is a record of this boot
with the state of each file: a crash may lose what was not on the disk yet.

An attempt notes its environment in its folder before it begins to use it. It stays until the attempt is proved clean.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from muster.content.archives import is_unpacked, unpack
from muster.durable import write_durably
from workers.host.content.failpoints import AFTER_ASSEMBLY, failpoint
from workers.host.content.places import ENVIRONMENTS, READ_AGAIN_S, Place
from workers.host.supervisor.files import CLEAN, NS_PER_S, boottime_ns, kernel_boot_id, read_json

if TYPE_CHECKING:
    from muster.environments.assemble import Interpreter

USE: Final = "environment.json"
"""File in an attempt's folder: the environment that its program runs by."""
_REACHES: Final = 0o711
_OWN, _WITH_HOST = "own", "host"
_BYTECODE: Final = "__pycache__"
FileState = tuple[int, int, int, int, int]


class _Record(msgspec.Struct, frozen=True):
    """``copy``: digest of the states of the copy's files. ``files``: of the environment's, by path.

    ``read_at_ns``: when each byte of them was last written, or compared with the copy.
    """

    name: str
    boot_id: str
    interpreter: str
    copy: str
    files: dict[str, FileState]
    read_at_ns: int


@dataclass(frozen=True, slots=True)
class Assembling:
    """What an environment is assembled from: the archives of a copy, which is whole. ``make_room``: on the disk."""

    place: Place
    archives: Sequence[Path]
    interpreter: Interpreter
    has_host_packages: bool
    make_room: Callable[[], None]

    def made(self, attempt: Path) -> Path:
        """Return the environment; assemble it if there is none. Note that the attempt uses it.

        The caller has locked the place alone.

        Raises:
            EnvironmentFaultError: it was built for another Python, or holds what no environment may.
            ArchiveError: the copy has no archives.
            NoRoomError: the disk is full.
            OSError: the disk fails.
        """
        ending = _WITH_HOST if self.has_host_packages else _OWN
        folder = _folder_of(self.place)
        record = _record_of(self.place, ending)
        if record is not None and self._counts(record, folder):
            _note_use(attempt, folder / record.name)
            return folder / record.name
        self.make_room()
        _make_folder(folder)
        target = folder / f"{self.place.digest}.{boottime_ns()}"
        _note_use(attempt, target)
        _remove_unused(self.place)
        from muster.environments.assemble import assemble  # noqa: PLC0415  # a start without an environment needs none of it

        assemble(partial(unpack, self.archives), target, self.interpreter, has_host_packages=self.has_host_packages)
        failpoint(AFTER_ASSEMBLY)
        self._note(target, ending)
        return target

    def _counts(self, record: _Record, folder: Path) -> bool:
        """Return whether the environment is as it was made; read all of it again if that is long ago."""
        if not _is_as_made(record, self.place, folder, self.interpreter):
            return False
        if boottime_ns() - record.read_at_ns <= READ_AGAIN_S * NS_PER_S:
            return True
        target = folder / record.name
        if not is_unpacked(self.archives, target):
            return False
        self._note(target, _WITH_HOST if self.has_host_packages else _OWN)
        return True

    def _note(self, target: Path, ending: str) -> None:
        name, copy = _name_of(self.interpreter), _state_of_copy(self.place)
        made = _Record(target.name, kernel_boot_id(), name, copy, dict(_states_in(target)), boottime_ns())
        write_durably(self.place.file(ending), msgspec.msgpack.encode(made))


def is_in_use(place: Place) -> bool:
    """Return whether an attempt that is not proved clean runs by an environment of this place."""
    folder = str(_folder_of(place))
    return any(
        Path(used).name.startswith(f"{place.digest}.") and str(Path(used).parent) == folder
        for used in _used_in(place.root.parent)
    )


def remove(place: Place) -> None:
    """Remove all that was assembled from a place, which nothing uses. The caller has locked it alone."""
    for ending in (_OWN, _WITH_HOST):
        place.file(ending).unlink(missing_ok=True)
    _remove_unused(place)


def sweep(state_dir: Path, content: Path) -> None:
    """Remove environments that are replaced and that no attempt uses any more, and the rests of killed assemblies."""
    for folder in (state_dir / ENVIRONMENTS).glob("*/*"):
        digest = folder.name.lstrip(".").partition(".")[0]
        place = Place.named(content / folder.parent.name / f"{digest}.env")
        with place.locked_if_free() as is_free:
            if is_free:
                _remove_unused(place)


def _remove_unused(place: Place) -> None:
    kept = {record.name for ending in (_OWN, _WITH_HOST) if (record := _record_of(place, ending)) is not None}
    kept |= {Path(used).name for used in _used_in(place.root.parent)}
    for folder in _folder_of(place).glob(f"*{place.digest}.*"):
        if folder.name not in kept:
            _remove(folder)


def _used_in(state_dir: Path) -> Iterator[str]:
    for path in (state_dir / "attempts").glob(f"*/{USE}"):
        used = (read_json(path) or {}).get("path")
        if isinstance(used, str) and not (read_json(path.with_name(CLEAN)) or {}).get("clean"):
            yield used


def _note_use(attempt: Path, environment: Path) -> None:
    write_durably(attempt / USE, msgspec.json.encode({"path": str(environment)}))


def _folder_of(place: Place) -> Path:
    return place.root.parent / ENVIRONMENTS / place.tenant_id


def _make_folder(folder: Path) -> None:
    for one in (folder.parent, folder):
        one.mkdir(mode=_REACHES, parents=True, exist_ok=True)
        one.chmod(_REACHES)


def _record_of(place: Place, ending: str) -> _Record | None:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.msgpack.decode(place.file(ending).read_bytes(), type=_Record)
    return None


def _is_as_made(record: _Record, place: Place, folder: Path, interpreter: Interpreter) -> bool:
    if (record.boot_id, record.interpreter, record.copy) != (
        kernel_boot_id(),
        _name_of(interpreter),
        _state_of_copy(place),
    ):
        return False
    try:
        found = dict(_states_in(folder / record.name))
    except OSError:
        return False
    are_there = all(found.get(path) == state for path, state in record.files.items())
    # A program that runs as we do may add bytecode, such as that of `python -O`.
    return are_there and all(path in record.files or _BYTECODE in path for path in found)


def _state_of_copy(place: Place) -> str:
    try:
        return hashlib.sha256(place.file("files").read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _name_of(interpreter: Interpreter) -> str:
    """Return what an assembled environment has of the interpreter."""
    own = (interpreter.executable, interpreter.home, interpreter.version, interpreter.packages)
    return hashlib.sha256(repr(own).encode()).hexdigest()


def _states_in(folder: Path) -> Iterator[tuple[str, FileState]]:
    """Yield path and state of each file and link, as ``copies.state_of`` has them."""
    base = len(str(folder)) + 1
    for root, folders, names in os.walk(folder, onerror=_raise):
        for name in (*names, *folders):
            path = f"{root}/{name}"
            status = os.lstat(path)
            if name in names or stat.S_ISLNK(status.st_mode):
                state = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid)
                yield path[base:], state


def _raise(fault: OSError) -> None:
    raise fault


def _remove(folder: Path) -> None:
    for root, _, _ in os.walk(folder):
        os.chmod(root, 0o700)  # noqa: PTH101  # as walk names it
    shutil.rmtree(folder, ignore_errors=True)
