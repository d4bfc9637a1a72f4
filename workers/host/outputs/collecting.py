"""One collection: the files that were set aside, or copied at a checkpoint, are read and uploaded."""

import contextlib
import os
import stat
import time
from collections.abc import Collection as Group
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from muster.client.host import HostClient
from muster.client.uploads import FolderContent
from muster.content.faults import ChangedFileError
from muster.content.manifest import decode
from muster.domain.stored_content import OUTPUTS_GIVEN_UP
from muster.durable import write_durably
from muster.failpoints import declare, failpoint
from workers.host.content.places import WORK
from workers.host.content.uploads import HostUpload, PartFolder, StoredAlreadyError, UploadEndedError
from workers.host.outputs import notes
from workers.host.outputs.patterns import Patterns
from workers.host.outputs.reading import Limits, Outputs
from workers.host.outputs.setting_aside import COPY, OUTPUT, Collection, read_collection, write_collection
from workers.host.outputs.tree import LeftOut, OutputTree
from workers.host.supervisor.user.job_user import JobUser

AFTER_COPY: Final = declare("outputs.after_copy")
AFTER_READ: Final = declare("outputs.after_read")
IN_UPLOAD: Final = declare("outputs.in_upload")
AFTER_UPLOAD: Final = declare("outputs.after_upload")
SIZE: Final = "num_bytes"
"""File next to a collection: how many bytes wait for their upload."""
KIND: Final = "outputs"
REPORT_AFTER_S: Final = 60.0
"""A fault of the upload is reported after so long: most pass before."""
_LEAST_FREE: Final = 1 << 30
_NO_FOLDER: Final = (
    "the working folder is not the tenant's on this host, so no pattern fits: name `working_dir`, submit a bundle, or "
    "write to MUSTER_OUTPUT_DIR"
)


@dataclass(slots=True)
class Collecting:
    """The collection of one folder that was set aside. ``client``: of this host."""

    place: Path
    client: HostClient
    ca_file: Path | None = None
    least_free: int = _LEAST_FREE
    _wanted: Collection = field(init=False)
    _faulty_since: float | None = None
    _is_reported: bool = False

    def run(self) -> None:
        """Upload, and report what could not be. It returns once nothing is left to be done."""
        wanted = read_collection(self.place)
        if wanted is None:
            return
        self._wanted = wanted
        for fields in wanted.notes:
            self._report(fields)
        try:
            self._upload(wanted)
        except StoredAlreadyError:  # before a kill, and files of the tenant's own folder have changed since
            return
        except UploadEndedError as fault:
            self._report(notes.fields_of("failed", f"{OUTPUTS_GIVEN_UP}: {fault}"))

    def copy(self, wanted: Collection, work: Path) -> None:
        """Copy the files that a running job names, at a checkpoint; ``run`` uploads them. ``work``: its work folder.

        ``wanted`` is written last: a copy that a kill breaks off is not used.
        """
        self._wanted = wanted
        with self._trees() as opened:
            outputs = Outputs(Limits(wanted.outputs.max_bytes, wanted.outputs.max_files))
            if (tree := self._working_folder(opened, work, outputs.left_out)) is not None:
                outputs.add(tree, Patterns(wanted.outputs.patterns))
            outputs.keep_within_limit()
            found, disk = sum(one.num_bytes for one, _ in outputs.found.values()), os.statvfs(self.place)
            if found + self.least_free > disk.f_bavail * disk.f_frsize:
                reported = [notes.fields_of("skipped", "the host's disk has no room for a copy of the outputs")]
            else:
                outputs.copy(self.place / COPY)
                failpoint(AFTER_COPY)
                reported = _reports_of(outputs)
        write_collection(self.place, structs.replace(wanted, notes=tuple(reported)))

    def _upload(self, wanted: Collection) -> None:
        with self._trees() as opened:
            outputs = self._found(wanted, opened)
            content = self._read(outputs)
            failpoint(AFTER_READ)
            while content is not None:
                sender = PartFolder(self.client, wanted.attempt_id, wanted.fence, KIND, wanted.name)
                try:
                    HostUpload(sender, content, self.ca_file, self._note_fault, on_progress=self._note_progress).run()
                except ChangedFileError as fault:
                    outputs.changed.add(fault.path, "it changed while it was read")
                    outputs.found.pop(fault.path, None)
                    content = self._read(outputs)
                else:
                    failpoint(AFTER_UPLOAD)
                    return

    def _read(self, outputs: Outputs) -> FolderContent | None:
        """Read the files and report what could not be; None: there is nothing to upload.

        At the end a list of no files is uploaded too: so the control plane knows that none is missing.
        """
        content = outputs.read()
        for fields in _reports_of(outputs):
            self._report(fields)
        taken = decode(content.manifest)
        write_durably(self.place / SIZE, str(taken.num_bytes).encode())
        if self._wanted.step is None:
            _prune(self.place, {entry.path for entry in taken.entries}, self._wanted.outputs.below or "")
        return content if taken.entries or self._wanted.step is None else None

    def _found(self, wanted: Collection, opened: list[OutputTree]) -> Outputs:
        order = wanted.outputs
        outputs = Outputs(Limits(order.max_bytes, order.max_files))
        is_end = wanted.step is None
        own, reader = (OUTPUT, JobUser.read(wanted.user)) if is_end else (COPY, JobUser(None, None))
        if (self.place / own).is_dir():
            opened.append(OutputTree.at(self.place / own, reader, is_ours=True))
            outputs.add(opened[-1], Patterns(("**",)))
        if is_end and order.patterns:
            patterns = Patterns(order.patterns)
            if (tree := self._working_folder(opened, self.place / WORK, outputs.left_out)) is not None:
                outputs.add(tree, patterns)
                for pattern in patterns.without_file:
                    outputs.left_out.add(pattern, "no file of the working folder fits this pattern")
        outputs.keep_within_limit()
        return outputs

    def _working_folder(self, opened: list[OutputTree], work: Path, left_out: LeftOut) -> OutputTree | None:
        order, user = self._wanted.outputs, JobUser.read(self._wanted.user)
        if order.below is None and order.in_place is None:
            left_out.add(".", _NO_FOLDER)
            return None
        try:
            if order.in_place is None:
                opened.append(OutputTree.at(work, user, is_ours=True, below=order.below or ""))
            else:
                opened.append(OutputTree.at(Path(order.in_place), user, is_ours=False))
        except FileNotFoundError:  # the attempt ended before it had its folder
            return None
        except OSError as fault:
            left_out.add(".", f"the working folder cannot be read: {fault.strerror}")
            return None
        return opened[-1]

    @contextlib.contextmanager
    def _trees(self) -> Iterator[list[OutputTree]]:
        opened: list[OutputTree] = []
        try:
            yield opened
        finally:
            for tree in opened:
                tree.close()

    def _note_fault(self, words: str) -> None:
        """Report once that the upload does not get on. It is tried again all the same."""
        now_s = time.monotonic()
        self._faulty_since = self._faulty_since or now_s
        if not self._is_reported and now_s - self._faulty_since >= REPORT_AFTER_S:
            self._is_reported = True
            note = notes.note_of(
                self._wanted.fence,
                self._wanted.step,
                notes.fields_of("failed", f"the upload does not get on, and is tried again: {words}"),
            )
            notes.report_once(self.client, self._wanted.attempt_id, note)

    def _note_progress(self, done: int, _total: int) -> None:
        self._faulty_since = None
        if done:
            failpoint(IN_UPLOAD)

    def _report(self, fields: dict[str, Any]) -> None:
        notes.report(self.client, self._wanted.attempt_id, notes.note_of(self._wanted.fence, self._wanted.step, fields))


def _reports_of(outputs: Outputs) -> list[dict[str, Any]]:
    """Return the notes about what a reading had to leave out."""
    both = (("left_out", outputs.left_out), ("changed", outputs.changed))
    return [notes.fields_of(found, left_out.words, left_out) for found, left_out in both if left_out.count]


def _prune(place: Path, taken: Group[str], below: str) -> None:
    """Remove what is not uploaded, such as the bundle and a program's own files: it would take the disk meanwhile."""
    for name, prefix in ((OUTPUT, ""), (WORK, f"{below}/" if below else "")):
        root = place / name
        kept = {f"{prefix}{path}" for path in taken}
        with contextlib.suppress(OSError, RecursionError):
            for folder, _, files, descriptor in os.fwalk(root, follow_symlinks=False):
                above = os.path.relpath(folder, root)
                for file in files:
                    path = file if above == "." else f"{above}/{file}"
                    if path not in kept and not stat.S_ISLNK(os.lstat(file, dir_fd=descriptor).st_mode):
                        os.unlink(file, dir_fd=descriptor)
