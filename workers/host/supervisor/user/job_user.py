"""User that a program runs as: the job's own, to which no file of the host worker and no other job belongs.

The number comes with the order and is the same on every host and in every attempt of the job, so ranks on several
hosts, and the next attempt, read and replace each other's checkpoints. No account of that number need exist.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.kernel import refuse_new_privileges, remove_segments_of
from workers.host.supervisor.proof.processes import living_processes, processes_of
from workers.host.supervisor.proof.shared_memory import SHARED_MEMORY
from workers.host.supervisor.user.thread_rights import set_effective, set_groups

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_MOST_BYTES = 1 << 20
"""Most bytes of a document that the program may have written itself."""
_DEVICE_PATTERNS = ("nvidia*", "nvidia-caps/*", "dri/render*", "infiniband/*")
REACHES = 0o711
"""Mode of our folders above the program's own: it may pass, and sees no names."""


class JobUserError(OSError):
    """The program cannot run as its user on this host: the host's fault."""


class JobUser:
    """User of a job. ``uid`` is the group's number too; None: the program runs as we do, and ``reason`` states why."""

    def __init__(self, uid: int | None, reason: str | None, refusal: str | None = None) -> None:
        self.uid = uid
        self.reason = reason
        self.is_taken = False
        """Whether all that runs as this user is the attempt's own, and may be ended as such."""
        self._refusal = refusal
        self._groups = [] if uid is None else device_groups()

    @classmethod
    def read(cls, document: dict[str, Any]) -> JobUser:
        """Read it. Raises TypeError or ValueError if it is no user of a job; an older launcher sends none."""
        uid = document.get("uid")
        if uid is not None and not 0 < int(uid) < 1 << 31:
            raise ValueError(f"user.uid is {uid}, which is no user of a job's own")
        return cls(None if uid is None else int(uid), document.get("reason"), document.get("refusal"))

    def facts(self) -> dict[str, Any]:
        return {"uid": self.uid, "uid_reason": self.reason}

    def environment(self, scratch: Path) -> dict[str, str]:
        """Return variables that replace our own home and name, which are not the program's."""
        return {} if self.uid is None else {"HOME": str(scratch), "USER": "muster-job", "LOGNAME": "muster-job"}

    def message(self) -> dict[str, Any] | None:
        """Return the user for a warm torchrun, which changes to this user itself."""
        return None if self.uid is None else {"uid": self.uid, "groups": self._groups}

    def become(self) -> None:
        """Change to this user in a fresh child, permanently. The kernel then forgets the parent with which the child
        was to die.
        """
        if self.uid is None:
            return
        os.setgroups(self._groups)
        os.setresgid(self.uid, self.uid, self.uid)
        os.setresuid(self.uid, self.uid, self.uid)
        refuse_new_privileges()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Access files with this user's rights, and no more: its links may lead anywhere. This thread alone."""
        if self.uid is None:
            yield
            return
        own_groups, own_gid = os.getgroups(), os.getegid()
        set_groups(self._groups)
        set_effective(uid=self.uid, gid=self.uid)
        try:
            yield
        finally:
            set_effective(uid=os.getresuid()[2])
            set_effective(gid=own_gid)
            set_groups(own_groups)

    def may(self, path: str | Path, mode: int) -> bool:
        with self.acting():
            return os.access(path, mode, effective_ids=True)

    def read_json(self, path: Path) -> dict[str, Any] | None:
        """Return what the program may have written: a plain file of at most 1 MiB that it may read itself,
        else None.
        """
        try:
            with self.acting():
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    return None
                document = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    def make_folder(self, path: Path) -> None:
        """Make a folder of its own, mode 0700, in one of our folders. Raises OSError: another's is in its place."""
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        self.own(path)

    def own(self, path: Path) -> None:
        """Give it a file that we have made. Raises JobUserError: it is neither ours nor its own."""
        if self.uid is None:
            return
        found = path.lstat()
        if found.st_uid == self.uid:
            return
        if found.st_uid != os.geteuid() or stat.S_ISLNK(found.st_mode):
            raise JobUserError(f"{path} belongs to user {found.st_uid}, not to the job's user {self.uid}")
        os.chown(path, self.uid, self.uid, follow_symlinks=False)

    def make_checkpoints_folder(self, path: Path) -> None:
        """Make the job's folder in the host's own one, with all files of earlier attempts from before it had a user.

        If the file system refuses us, as one that trusts no root does, the program makes it itself.

        Raises:
            JobUserError: the folder is another user's.
        """
        if self.uid is None:
            return
        try:
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True)
                path.parent.chmod(REACHES)
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            found = path.lstat()
        except PermissionError:
            return
        if found.st_uid == self.uid:
            return
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), path.parent.stat().st_uid}:
            raise JobUserError(f"{path} belongs to user {found.st_uid}, not to the job's user {self.uid}")
        self._give(path)
        if not self.may(path, os.W_OK | os.X_OK):
            raise JobUserError(
                f"{path}, for its checkpoints, is closed to the job's user {self.uid}: a folder above it is"
            )

    def _give(self, path: Path) -> None:
        uid = self.uid or 0
        for _, folders, names, descriptor in os.fwalk(path, topdown=False):
            for name in (*folders, *names):
                os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
        os.chown(path, uid, uid, follow_symlinks=False)

    def take(self, folder: Path) -> None:
        """Take the user for this attempt alone. Raises JobUserError: a process on this host already is this user, or
        may be.
        """
        if self._refusal is not None:
            raise JobUserError(self._refusal)
        if self.uid is None:
            return
        if running := processes_of(self.uid, living_processes()):
            raise JobUserError(f"user {self.uid}, which is to be this job's alone, already runs process {min(running)}")
        for order in folder.parent.glob(f"*/{files.ORDER}"):
            user = (files.read_json(order) or {}).get("user")
            if order.parent == folder or not isinstance(user, dict) or user.get("uid") != self.uid:
                continue
            if not (files.read_json(order.parent / files.CLEAN) or {}).get("clean"):
                raise JobUserError(f"{order.parent.name}, of the same user {self.uid}, is not proved clean here yet")
        files.write_json(folder / files.USER, {"uid": self.uid})
        self.is_taken = True

    def require_reach(self, folder: Path, program: str) -> None:
        """Raise JobUserError if a folder above ours, or our interpreter, is closed to the program."""
        if self.uid is None:
            return
        for path, mode in ((folder, os.X_OK), (program, os.X_OK)):
            if not self.may(path, mode):
                raise JobUserError(f"{path} is closed to the job's user {self.uid}: it, or a folder above it")

    def processes(self) -> set[int]:
        """Return all processes of this user, however they hide. None before it was taken."""
        return set() if self.uid is None or not self.is_taken else processes_of(self.uid, living_processes())

    def remove_shared_memory(self) -> None:
        """Remove its names in shared memory, which outlive all its processes."""
        if self.uid is None or not self.is_taken:
            return
        with contextlib.suppress(OSError):
            for entry in os.scandir(SHARED_MEMORY):
                if entry.stat(follow_symlinks=False).st_uid != self.uid:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.unlink(entry.path)  # noqa: PTH108  # as scandir names it
        remove_segments_of(self.uid)


def device_groups(devices: Path = Path("/dev")) -> list[int]:
    """Return groups that a GPU's device files are open to and others are not: only these of our groups are kept."""
    groups = set()
    for pattern in _DEVICE_PATTERNS:
        for path in devices.glob(pattern):
            try:
                found = path.stat()
            except OSError:
                continue
            is_for_group = found.st_mode & 0o060 == 0o060 and found.st_mode & 0o006 != 0o006
            if stat.S_ISCHR(found.st_mode) and is_for_group and found.st_gid != 0:
                groups.add(found.st_gid)
    return sorted(groups)
