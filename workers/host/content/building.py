"""One build of an environment as a process of the job's user, in the job's control group, and what it leaves.

The folder of a build is ours. The build writes in ``own`` in it, which is the job's user's. Once nothing of the build
lives any more, ``own`` moves into a folder that no program reaches. Only then do we read it.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

import msgspec

from muster.environments.recipe import PackageIndex, Recipe
from muster.plain_files import open_plain
from muster.wire.content import MAX_BUILD_LOG
from workers.host.content.environment_build import BuildEnd, BuildOrder
from workers.host.content.faults import NoEnvironmentError
from workers.host.content.fetch_order import FetchOrder
from workers.host.content.index_relay import IndexRelay, places_of
from workers.host.content.own_network import OwnNetwork, can_be_made
from workers.host.content.places import BUILD
from workers.host.content.removal import remove_work_folder
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


class Building:
    """A build from its start on. A ``with`` statement ends it, and removes its folder."""

    def __init__(self, order: FetchOrder, recipe_files: Mapping[str, bytes], within_s: float) -> None:
        """Start it. ``recipe_files``: by path in the bundle.

        Raises:
            NoEnvironmentError: no process can be started.
            OSError: the disk fails.
        """
        if order.environment is None:
            raise ValueError("the order has no environment")
        self._user = JobUser(None if order.owner is None else order.owner[0], None)
        self._root = Path(f"{order.folder}{BUILD}")
        self._own = self._root / _OWN
        self._codes: dict[int, int] = {}
        self._output = os.memfd_create("built")
        adopt_orphans()  # a build that leaves its parent stays below us
        remove_work_folder(self._root)
        self._make_folders(recipe_files)
        given = order.environment
        self._network = _network_of(given.recipe, given.index, self._user)
        self._relay = self._relay_to(given.index)
        index = given.index
        if self._relay is not None:
            index = msgspec.structs.replace(index, proxy=self._relay.address)
        build = BuildOrder(
            recipe=given.recipe,
            work=str(self._own / "work"),
            target=str(self._own / "built"),
            python=given.python,
            index=index,
            cache=str(self._own / "cache"),
            log=str(self._own / "build.log"),
            within_s=within_s,
        )
        try:
            self._pid = self._start(build, _group_of(order))
        except BaseException:
            self._close_network()
            raise

    def _relay_to(self, index: PackageIndex) -> IndexRelay | None:
        """Return the way to the index. A wheelhouse alone needs none."""
        if self._network is None or self._network.way_out is None or index.url is None:
            return None
        return IndexRelay(self._network.way_out, places_of(index.url, index.hosts))

    def _make_folders(self, recipe_files: Mapping[str, bytes]) -> None:
        work = self._own / "work"
        self._root.mkdir(mode=REACHES)
        self._root.chmod(REACHES)
        work.mkdir(parents=True, mode=0o755)
        for name, content in recipe_files.items():
            path = work / name
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            path.write_bytes(content)
            path.chmod(0o444)
        for folder, _, _ in os.walk(work):
            Path(folder).chmod(0o755)
        self._own.chmod(0o700)
        self._user.own(self._own)

    def _start(self, build: BuildOrder, group: Group | None) -> int:
        asked = os.memfd_create("asked", 0)
        os.set_inheritable(asked, True)  # its only parameter
        try:
            os.write(asked, msgspec.json.encode(build))
            os.lseek(asked, 0, os.SEEK_SET)
            command = [sys.executable, "-I", "-m", "workers.host.content.environment_build", str(asked)]
            environment = {"PATH": os.defpath, "HOME": str(self._own), "TMPDIR": str(self._own), "LANG": "C.UTF-8"}
            place = None if group is None else group.place
            network = None if self._network is None else self._network.descriptor
            return children.start(command, environment, "/", self._output, place, self._user, network)
        except children.StartError as fault:
            raise NoEnvironmentError(f"its build cannot be started: {fault}") from fault
        finally:
            os.close(asked)

    def __enter__(self) -> Self:
        if self._relay is not None:
            self._relay.__enter__()  # no other thread runs when the build is forked
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._relay is not None:
            self._relay.__exit__()
        self._close_network()
        os.close(self._output)
        remove_work_folder(self._root)

    def _close_network(self) -> None:
        if self._network is not None:
            self._network.close()

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
        """Return how it ended, after nothing of it lives any more. Raises NoEnvironmentError: something does."""
        self.kill()
        if self._alive():
            raise NoEnvironmentError("something of its build hangs in the kernel, and cannot be ended")
        closed = self._root / _CLOSED
        closed.mkdir(mode=0o700)
        self._own.rename(closed / _OWN)
        self._own = closed / _OWN
        said = os.pread(self._output, _MOST_WORDS, 0).decode(errors="replace").strip().splitlines()
        with contextlib.suppress(msgspec.MsgspecError, IndexError):
            return self._with_refused(msgspec.json.decode(said[-1], type=BuildEnd))
        words = said[-1][:300] if said else f"it printed nothing, and has code {self._codes.get(self._pid)}"
        return BuildEnd(found="passing", words=f"the build ended without a result: {words}")

    def _with_refused(self, end: BuildEnd) -> BuildEnd:
        """Return the end with what the build could not reach, if it failed."""
        refused = set() if self._relay is None else self._relay.refused
        if end.found == "built" or not refused:
            return end
        named = ", ".join(sorted(map(str, refused)))
        words = f"{end.words}; the build asked for {named}, which is neither the index nor in `package_index_hosts`"
        return msgspec.structs.replace(end, words=words)

    @property
    def content(self) -> Path:
        """The environment, once the build has ended well."""
        return self._own / "built"

    def log(self) -> str:
        """Return the end of the installer's words."""
        with contextlib.suppress(OSError), os.fdopen(open_plain(self._own / "build.log"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_BUILD_LOG))
            return file.read(MAX_BUILD_LOG).decode(errors="replace").replace("\x00", "\ufffd")
        return ""


def refusal_of(recipe: Recipe, index: PackageIndex, *, has_user: bool) -> str | None:
    """Return why this host builds no source distributions for a recipe; None: it needs none, or may build them."""
    if not recipe.allows_source or index.source_builds == "anywhere":
        return None
    if index.source_builds == "never":
        return "this host builds no source distributions (`source_builds: never`)"
    if not has_user:
        return (
            "this host builds no source distributions: without `job_uids` their code would run as the host worker"
            " (its operator may set `source_builds: anywhere`)"
        )
    if not can_be_made():
        return (
            "this host builds no source distributions: it may not cut their code off from the network"
            " (its operator may set `source_builds: anywhere`)"
        )
    return None


def _network_of(recipe: Recipe, index: PackageIndex, user: JobUser) -> OwnNetwork | None:
    """Return a network for the build; None: this host may make none, and the build needs none.

    Raises NoEnvironmentError: the build runs code of packages, and would run it in the host's network.
    """
    if (why := refusal_of(recipe, index, has_user=user.uid is not None)) is not None:
        raise NoEnvironmentError(why)
    try:
        return OwnNetwork()
    except OSError as fault:
        if recipe.allows_source and index.source_builds != "anywhere":
            raise NoEnvironmentError(f"its build cannot have a network of its own: {fault}") from fault
        return None


def _group_of(order: FetchOrder) -> Group | None:
    found = order.cgroup
    if not found or not found.get("folders"):
        return None
    return Group(str(found["kind"]), {name: Path(folder) for name, folder in found["folders"].items()})
