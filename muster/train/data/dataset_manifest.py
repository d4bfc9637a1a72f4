"""Manifest of a dataset: each file's path, size and SHA-256, written next to the files as ``muster-dataset.json``.

The dataset's own SHA-256 is the hash of its files' entries in the order of their paths, so it names the bytes at any
place. Files are hashed in parallel, since hashing releases the interpreter. Links that lead out of the folder are
refused.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from muster.train.runtime.durable_files import sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA = 1
DATASET = "muster-dataset.json"
_BLOCK_BYTES = 1 << 20
_MOST_WORKERS = 16
_HEX = re.compile(r"[0-9a-f]{64}")


class DatasetError(ValueError):
    """Fault of a dataset, in one sentence that names the file."""


@dataclass(frozen=True)
class DataFile:
    """Entry of a file. ``path`` is relative to the dataset's folder, with ``/``. ``num_samples`` None: they were not
    counted.
    """

    path: str
    size: int
    sha256: str
    num_samples: int | None = None


@dataclass(frozen=True)
class DatasetManifest:
    """Manifest with its ``files`` in the order of their paths."""

    files: tuple[DataFile, ...]

    @property
    def sha256(self) -> str:
        """SHA-256 of the entries: equal for equal bytes at equal paths, whatever the counts of samples."""
        entries = "".join(f"{file.path}\0{file.size}\0{file.sha256}\n" for file in self.files)
        return hashlib.sha256(entries.encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def num_samples(self) -> int | None:
        """Samples of the files whose samples were counted; None if none were."""
        counts = [file.num_samples for file in self.files if file.num_samples is not None]
        return sum(counts) if counts else None


@dataclass(frozen=True)
class Difference:
    """Difference between a file and its entry in the manifest."""

    path: str
    what: Literal["damaged", "missing", "extra", "unreadable"]
    why: str


def describe(folder: Path, *, lines: str | None = None) -> DatasetManifest:
    """Read every file of the folder.

    Args:
        lines: in files that this pattern matches, each line is a sample.

    Raises:
        DatasetError: nothing is there, a link leads out, or a file cannot be read or changes meanwhile.
    """
    paths = sorted(files_of(folder))
    if not paths:
        raise DatasetError(f"{folder} holds no file: name the folder that holds the dataset")
    with ThreadPoolExecutor(num_workers()) as pool:
        return DatasetManifest(tuple(pool.map(lambda path: _described(folder, path, lines), paths)))


def write(folder: Path, manifest: DatasetManifest, target: Path | None = None) -> Path:
    """Write the manifest to ``target``, or into the folder itself. Raises OSError."""
    target = folder / DATASET if target is None else target
    write_durably(target, dump(manifest))
    sync_folder(target.absolute().parent)
    return target


def dump(manifest: DatasetManifest) -> bytes:
    document = {
        "schema": SCHEMA,
        "sha256": manifest.sha256,
        "num_bytes": manifest.num_bytes,
        "num_samples": manifest.num_samples,
        "files": [asdict(file) for file in manifest.files],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def read(folder: Path, source: Path | None = None, *, most_bytes: int | None = None) -> DatasetManifest:
    """Return the manifest in ``folder``, or at ``source``. ``most_bytes``: limit of its file's size; None: no limit.

    Raises:
        DatasetError: there is none, it is not a manifest, or it is larger.
    """
    source = folder / DATASET if source is None else source
    try:
        found = source.stat()
        if not stat.S_ISREG(found.st_mode):
            raise DatasetError(f"{source} is no regular file: name the one that `muster data manifest` wrote")
        with source.open("rb") as file:
            content = file.read(-1 if most_bytes is None else most_bytes + 1)
    except FileNotFoundError:
        raise DatasetError(f"{source} is not there: `muster data manifest {folder}` writes it") from None
    except OSError as fault:
        raise DatasetError(f"{source} cannot be read: {fault.strerror}") from None
    if most_bytes is not None and len(content) > most_bytes:
        raise DatasetError(
            f"{source} holds more than {most_bytes >> 20} MiB, which is all that is read of a manifest here: pack the"
            " dataset into fewer files"
        )
    try:
        return parse(content)
    except DatasetError as fault:
        raise DatasetError(f"{source}: {fault}") from None


def parse(content: bytes) -> DatasetManifest:
    """Parse a manifest; fields that a newer version added are ignored. Raises DatasetError, naming the field."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise DatasetError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise DatasetError(f"schema must be {SCHEMA}, in a JSON object")
    entries = document.get("files")
    if not isinstance(entries, list) or not entries:
        raise DatasetError("files must be a list of one entry or more")
    manifest = DatasetManifest(tuple(_file(number, entry) for number, entry in enumerate(entries)))
    paths = [file.path for file in manifest.files]
    if paths != sorted(set(paths)):
        raise DatasetError("files must stand in the order of their paths, each once")
    if document.get("sha256") != manifest.sha256:
        raise DatasetError("sha256 is not that of its files: it was changed after it was written")
    return manifest


def differences(folder: Path, manifest: DatasetManifest) -> list[Difference]:
    """Return the differences between folder and manifest, in the order of paths; every byte is read back.

    Raises:
        DatasetError: the folder cannot be listed.
    """
    known = {file.path for file in manifest.files}
    extra = [Difference(path, "extra", "the manifest does not name it") for path in set(files_of(folder)) - known]
    with ThreadPoolExecutor(num_workers()) as pool:
        found = list(pool.map(lambda file: difference(folder, file), manifest.files))
    return sorted([*extra, *(each for each in found if each is not None)], key=lambda each: each.path)


def size_difference(folder: Path, file: DataFile) -> Difference | None:
    """Return how one file is missing or of another size; None if it is right. Its content is not read."""
    try:
        there = (folder / file.path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return Difference(file.path, "missing", "it is not there")
    except OSError as fault:
        return Difference(file.path, "unreadable", fault.strerror or str(fault))
    if not stat.S_ISREG(there.st_mode):
        return Difference(file.path, "unreadable", "it is no regular file")
    if there.st_size == file.size:
        return None
    return Difference(file.path, "damaged", f"it holds {there.st_size:,} bytes instead of {file.size:,}")


def difference(folder: Path, file: DataFile, on_block: Callable[[], None] | None = None) -> Difference | None:
    """Return how one file differs from its entry; None if it does not. ``on_block``: called after each part that is
    read.
    """
    if (found := size_difference(folder, file)) is not None:
        return found
    try:
        sha256, _ = _digest(folder, file.path, counts_lines=False, on_block=on_block)
    except FileNotFoundError:
        return Difference(file.path, "missing", "it is not there")
    except OSError as fault:
        return Difference(file.path, "unreadable", fault.strerror or str(fault))
    except DatasetError as fault:
        return Difference(file.path, "unreadable", str(fault))
    return None if sha256 == file.sha256 else Difference(file.path, "damaged", "its SHA-256 is another")


def files_of(folder: Path) -> Iterator[str]:
    """Yield each file's path below the folder, except the manifest's own.

    Raises:
        DatasetError: it is no folder, cannot be read, or holds an entry that is no file of its own.
    """
    if not folder.is_dir():
        raise DatasetError(f"{folder} is no folder: name the one that holds the dataset")
    inside = folder.resolve()
    for place, folders, names in os.walk(folder, onerror=_refuse):
        for name in sorted([*names, *(each for each in folders if (Path(place) / each).is_symlink())]):
            path = Path(place) / name
            relative = path.relative_to(folder).as_posix()
            if relative != DATASET and not relative.startswith(f".{DATASET}."):
                _require_own(path, relative, inside)
                yield relative


def _require_own(path: Path, relative: str, inside: Path) -> None:
    if not relative.isprintable():
        raise DatasetError(f"{relative!r} is no name that a manifest can hold: rename it")
    if path.is_symlink() and not path.resolve().is_relative_to(inside):
        raise DatasetError(f"{relative} is a link that leads out of the folder: put the file itself there")
    if not path.is_file():
        raise DatasetError(f"{relative} is neither a file nor a link to one: take it out of the folder")


def _refuse(fault: OSError) -> None:
    raise DatasetError(f"{fault.filename} cannot be read: {fault.strerror}")


def _described(folder: Path, path: str, lines: str | None) -> DataFile:
    has_lines = lines is not None and (fnmatch.fnmatch(path, lines) or fnmatch.fnmatch(Path(path).name, lines))
    try:
        size = (folder / path).stat().st_size
        sha256, num_lines = _digest(folder, path, counts_lines=has_lines)
    except OSError as fault:
        raise DatasetError(f"{path} cannot be read: {fault.strerror}") from None
    return DataFile(path, size, sha256, num_lines if has_lines else None)


def _digest(
    folder: Path, path: str, *, counts_lines: bool, on_block: Callable[[], None] | None = None
) -> tuple[str, int]:
    """Return (SHA-256, lines), where a last line without its end counts.

    Raises OSError, or DatasetError if the file changes meanwhile.
    """
    sha256, num_lines, last = hashlib.sha256(), 0, b"\n"
    with (folder / path).open("rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        while block := file.read(_BLOCK_BYTES):
            sha256.update(block)
            if on_block is not None:
                on_block()
            if counts_lines:
                num_lines += block.count(b"\n")
                last = block[-1:]
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise DatasetError(f"{path} changed while it was read: let its writer end first")
    return sha256.hexdigest(), num_lines + (last != b"\n")


def _file(number: int, entry: Any) -> DataFile:
    where = f"files[{number}]"
    if not isinstance(entry, dict):
        raise DatasetError(f"{where} must be a JSON object")
    path, size, sha256 = (entry.get(name) for name in ("path", "size", "sha256"))
    num_samples = entry.get("num_samples")
    if not isinstance(path, str) or not _is_below(path):
        raise DatasetError(f"{where}.path must lie below the folder, such as train/0001.bin")
    if type(size) is not int or size < 0:
        raise DatasetError(f"{where}.size must be a number of bytes, 0 or more")
    if not isinstance(sha256, str) or not _HEX.fullmatch(sha256):
        raise DatasetError(f"{where}.sha256 must be 64 digits of 0-9a-f")
    if num_samples is not None and (type(num_samples) is not int or num_samples < 0):
        raise DatasetError(f"{where}.num_samples must be a number, 0 or more, or null")
    return DataFile(path, size, sha256, num_samples)


def _is_below(path: str) -> bool:
    parts = PurePosixPath(path).parts
    is_plain = path.isprintable() and PurePosixPath(path).as_posix() == path
    return is_plain and bool(parts) and parts[0] != "/" and ".." not in parts and path != DATASET


def num_workers() -> int:
    """Return how many files are hashed at a time."""
    return min(os.cpu_count() or 1, _MOST_WORKERS)
