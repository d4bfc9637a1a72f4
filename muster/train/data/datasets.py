"""A dataset as a program reads it: verified against its manifest, and on the host's own disk if requested.

    data = train.dataset("/mnt/data/corpus", stage=True)
    run = train.start(model, optimizer, data=data)

Every rank calls it. On each host one rank reads or copies, and the others wait for it. No process group is needed.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from muster.train.data import dataset_copies as copies
from muster.train.data import dataset_manifest as manifests
from muster.train.data.dataset_manifest import DatasetError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from muster.train.data.dataset_manifest import DatasetManifest

_NO_FOLDER = "MUSTER_SCRATCH_DIR is empty: this program has no folder for copies that outlives it"


@dataclass(frozen=True)
class Dataset:
    """Dataset of a program. ``path``: the folder to read. ``source``: the folder that was named; it differs if staged.

    ``why_in_place``: the reason, as text, if a copy was requested and could not be made.
    """

    path: Path
    source: Path
    manifest: DatasetManifest
    why_in_place: str = ""
    _in_use: copies.Use | None = field(default=None, repr=False, compare=False)

    @property
    def sha256(self) -> str:
        return self.manifest.sha256

    @property
    def num_samples(self) -> int | None:
        """Samples that were counted when the manifest was written; None if none were."""
        return self.manifest.num_samples

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the manifest names, in the order of their paths; other files in the folder do not belong to it."""
        return tuple(self.path / file.path for file in self.manifest.files)

    @property
    def is_staged(self) -> bool:
        return self.path != self.source

    def close(self) -> None:
        """End the use of the dataset, so that its copy may be removed if space is needed. The process's end does it
        too.
        """
        if self._in_use is not None:
            self._in_use.close()


def dataset(path: str | Path, *, stage: bool = False, environ: Mapping[str, str] | None = None) -> Dataset:
    """Return the dataset in a folder that has a ``muster-dataset.json``, with each file verified against it.

    Args:
        path: its folder; a host reads all of it once, and again only if a file's size, time or inode is another.
        stage: copy it to the host's disk (``MUSTER_SCRATCH_DIR``, at most ``MUSTER_SCRATCH_BYTES``) and read it there.
            Without space for it, or if nothing can be written, it is read in place, and the log states so.

    Raises:
        DatasetError: there is no manifest, or a file is damaged or missing, by name.
        ValueError: a variable that cannot be read.
    """
    environ = os.environ if environ is None else environ
    limit_bytes = _limit_of(environ)
    source = Path(path).absolute()
    manifest = manifests.read(source)
    attempt_id = environ.get("MUSTER_ATTEMPT_ID", "")
    folder = environ.get("MUSTER_SCRATCH_DIR")
    with ExitStack() as alone:
        try:
            scratch = copies.scratch_of(Path(folder) if folder else None)
            alone.enter_context(copies.making(scratch, manifest.sha256))
        except OSError as fault:
            return _unremembered(source, manifest, f"the folder for copies cannot be used: {fault}" if stage else "")
        if stage and folder == "":
            return _in_place(scratch, source, manifest, attempt_id, _NO_FOLDER)
        if stage:
            return _staged(scratch, source, manifest, limit_bytes, attempt_id)
        _require_whole(scratch, source, manifest, attempt_id)
    return Dataset(source, source, manifest)


def _staged(
    scratch: Path, source: Path, manifest: DatasetManifest, limit_bytes: int | None, attempt_id: str
) -> Dataset:
    copy = scratch / manifest.sha256
    with ExitStack() as failed:
        try:
            in_use = copies.use(scratch, manifest.sha256)
            failed.callback(in_use.close)
            if not _is_whole_copy(scratch, copy, manifest):
                _report(f"{source} is copied to {copy}: {manifest.num_bytes:,} bytes")
                copies.copy(scratch, source, manifest, limit_bytes=limit_bytes)
                copies.note_seen(scratch, copy, manifest)
        except OSError as fault:
            why = str(fault) if isinstance(fault, copies.NoRoomError) else f"it could not be copied: {fault}"
            return _in_place(scratch, source, manifest, attempt_id, why)
        failed.pop_all()
    return Dataset(copy, source, manifest, _in_use=in_use)


def _in_place(scratch: Path, source: Path, manifest: DatasetManifest, attempt_id: str, why: str) -> Dataset:
    """Return the dataset in its own folder instead of a copy."""
    _report(f"{source} is read in place: {why}")
    _require_whole(scratch, source, manifest, attempt_id)
    return Dataset(source, source, manifest, why)


def _is_whole_copy(scratch: Path, copy: Path, manifest: DatasetManifest) -> bool:
    """Return whether the copy is whole; a copy that has changed since it was made is made again."""
    if not copy.is_dir():
        return False
    try:
        copies.require_whole(scratch, copy, manifest, "")
    except DatasetError as fault:
        _report(f"{fault}; it is copied again")
        return False
    return True


def _require_whole(scratch: Path, source: Path, manifest: DatasetManifest, attempt_id: str) -> None:
    if copies.require_whole(scratch, source, manifest, attempt_id):
        _report(f"{source} is as its manifest says: {len(manifest.files):,} files, {manifest.num_bytes:,} bytes")


def _unremembered(source: Path, manifest: DatasetManifest, why: str) -> Dataset:
    """Return the dataset after this rank has read it itself, since no record can be stored.

    ``why``: the reason why no copy is made, if one was requested.
    """
    if why:
        _report(f"{source} is read in place: {why}")
    if fault := copies.fault_of(source, manifest):
        raise DatasetError(fault)
    return Dataset(source, source, manifest, why)


def _limit_of(environ: Mapping[str, str]) -> int | None:
    text = environ.get("MUSTER_SCRATCH_BYTES")
    if not text:
        return None
    if not text.isdecimal():
        raise ValueError(f"MUSTER_SCRATCH_BYTES={text!r}: must be a number of bytes, 0 or more")
    return int(text)


def _report(sentence: str) -> None:
    """Write a sentence to the job's log."""
    sys.stderr.write(f"muster.train: {sentence}\n")
