"""One build of an environment or bundle as a process of the job's user, in the job's control group, and what it leaves.

The folder of a build is ours. The build writes in ``own`` in it, which is the job's user's. Once nothing of the build
lives any more, ``own`` moves into a folder that no program reaches. Only then do we read it.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from muster.plain_files import open_plain
from muster.wire.content import MAX_BUILD_LOG
from workers.host.content.build_network import BuildNetwork
from workers.host.content.environment_build import BuildEnd
from workers.host.content.faults import NotBuiltError
from workers.host.content.fetch_order import FetchOrder
from workers.host.content.places import BUILD
from workers.host.content.removal import remove_work_folder, set_aside_to_remove
from workers.host.supervisor import children
from workers.host.supervisor.cgroup.group import Group
from workers.host.supervisor.kernel import adopt_orphans
from workers.host.supervisor.proof.cleaning import reap_children
from workers.host.supervisor.proof.processes import descendants, kill_all, living_processes, processes_of
from workers.host.supervisor.user.job_user import REACHES, JobUser

_OWN: Final = "own"
_CLOSED: Final = "closed"
_MOST_WORDS: Final = 1 << 16
_PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Step:
    """What a build runs: one of our own modules, and the order that it reads."""

    module: str
    order: msgspec.Struct


class Building:
    """A build from its start on. A ``with`` statement ends it, and removes its folder."""

    def __init__(
        self,
        order: FetchOrder,
        step: Callable[[Path], Step],
        files: Mapping[str, bytes] | None = None,
        network: BuildNetwork | None = None,
    ) -> None:
        """Start it. ``step``: gets the build's own folder. ``files``: what it finds in the folder ``work``, by path.

        ``network``: the one that the build runs in, and ends with; None: the host's.

        Raises:
            NotBuiltError: no process can be started.
            OSError: the disk fails.
        """
        self._user = JobUser(order.job_uid, None)
        self._root = Path(f"{order.folder}{BUILD}")
        self._own = self._root / _OWN
        self._network = network
        self._codes: dict[int, int] = {}
        self._output = os.memfd_create("built")
        adopt_orphans()  # a build that leaves its parent stays below us
        try:
            remove_work_folder(self._root)
            self._make_folders(files or {})
            self._pid = self._start(step(self._own), _group_of(order))
        except BaseException:
            if network is not None:
                network.close()
            raise

    def _make_folders(self, files: Mapping[str, bytes]) -> None:
        work = self._own / "work"
        self._root.mkdir(mode=REACHES, parents=True)
        self._root.chmod(REACHES)
        work.mkdir(parents=True, mode=0o755)
        for name, content in files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.write_bytes(content)
            path.chmod(0o444)
        for folder, _, _ in os.walk(work):
            Path(folder).chmod(0o755)
        self._own.chmod(0o700)
        self._user.own(self._own)

    def _start(self, step: Step, group: Group | None) -> int:
        asked = os.memfd_create("asked", 0)
        os.set_inheritable(asked, True)  # its only parameter
        try:
            os.write(asked, msgspec.json.encode(step.order))
            os.lseek(asked, 0, os.SEEK_SET)
            command = [sys.executable, "-I", "-m", step.module, str(asked)]
            environment = {"PATH": os.defpath, "HOME": str(self._own), "TMPDIR": str(self._own), "LANG": "C.UTF-8"}
            place = None if group is None else group.place
            network = None if self._network is None else self._network.descriptor
            return children.start(command, environment, "/", self._output, place, self._user, network)
        except children.StartError as fault:
            raise NotBuiltError(f"its build cannot be started: {fault}") from fault
        finally:
            os.close(asked)

    def __enter__(self) -> Self:
        if self._network is not None:
            self._network.__enter__()  # no other thread runs when the build is forked
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._network is not None:
            self._network.__exit__()
        os.close(self._output)
        set_aside_to_remove(self._root)  # the host's keeper removes its thousands of files, and no program waits

    def is_over(self) -> bool:
        self._codes.update(reap_children())
        return self._pid in self._codes

    def kill(self) -> None:
        """End all of it: what it has started, and with a user of its own all that runs as that user."""
        kill_all(self._alive, lambda: self._codes.update(reap_children()), patience_s=_PATIENCE_S)

    def _alive(self) -> set[int]:
        living = living_processes()
        uid = self._user.uid
        return descendants({os.getpid()}, living) | (set() if uid is None else processes_of(uid, living))

    def end(self) -> BuildEnd:
        """Return how it ended, after nothing of it lives any more. Raises NotBuiltError: something does."""
        self.kill()
        if self._alive():
            raise NotBuiltError("something of its build hangs in the kernel, and cannot be ended")
        closed = self._root / _CLOSED
        closed.mkdir(mode=0o700)
        self._own.rename(closed / _OWN)
        self._own = closed / _OWN
        said = os.pread(self._output, _MOST_WORDS, 0).decode(errors="replace").strip().splitlines()
        with contextlib.suppress(msgspec.MsgspecError, IndexError):
            end = msgspec.json.decode(said[-1], type=BuildEnd)
            return end if self._network is None else self._network.with_refused(end)
        words = said[-1][:300] if said else f"it printed nothing, and has code {self._codes.get(self._pid)}"
        return BuildEnd(found="passing", words=f"the build ended without a result: {words}")

    @property
    def content(self) -> Path:
        """What was built, once the build has ended well."""
        return built_in(self._own)

    @property
    def closed(self) -> Path:
        """A folder for what is made of it, once the build has ended. No program reaches it."""
        return self._own.parent

    def log(self) -> str:
        """Return the end of its log."""
        with contextlib.suppress(OSError), os.fdopen(open_plain(log_in(self._own)), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_BUILD_LOG))
            return file.read(MAX_BUILD_LOG).decode(errors="replace").replace("\x00", "\ufffd")
        return ""


def built_in(own: Path) -> Path:
    """Return the path of what a build makes in its folder."""
    return own / "built"


def log_in(own: Path) -> Path:
    """Return the path of a build's log in its folder."""
    return own / "build.log"


def _group_of(order: FetchOrder) -> Group | None:
    found = order.cgroup
    if not found or not found.get("folders"):
        return None
    return Group(str(found["kind"]), {name: Path(folder) for name, folder in found["folders"].items()})
