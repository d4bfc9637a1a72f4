"""What the launcher ordered of an attempt's content, and what its supervisor reads of the way there."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from muster.environments.recipe import PackageIndex, Recipe

REPORT_PAUSE_S: Final = 0.5


class EnvironmentOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of the program. ``build_s``: how long this host may take to get it, once the bundle is here.

    ``python``: the host's interpreter, which it is for. ``index``: the operator's sources of packages.
    """

    recipe: Recipe
    build_s: float
    python: str
    index: PackageIndex


class GitOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The commit that the bundle is made from, as ``PartGit`` of ``wire.host`` says. ``node_id``: this host's."""

    key: str
    url: str
    commit: str
    secret: str | None
    build_s: float
    max_bytes: int
    max_files: int
    node_id: str


class EnvironmentKey(msgspec.Struct, frozen=True):
    """What an environment is known by: its key, and the host's part in that. A bundle of a commit has a key alone."""

    text: str
    interpreter: str
    platform: str


class FetchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher wrote of the bundle into the attempt's order. ``digest``: empty while ``git`` says what it is.

    ``part_id``, ``fence``: of the attempt or preflight. ``folder``: its work folder. ``owner``: user and group of that;
    None: our own. ``api_url``, ``key_file``, ``ca_file``: the control plane's. ``cgroup``: identity of the group that
    the program runs in, from its supervisor.
    """

    digest: str
    tenant_id: str
    part_id: str
    fence: int
    folder: str
    content_dir: str
    attempts_dir: str
    cache_bytes: int
    free_bytes: int
    are_linked: bool
    owner: tuple[int, int] | None
    api_url: str
    key_file: str
    ca_file: str | None = None
    environment: EnvironmentOrder | None = None
    git: GitOrder | None = None
    cgroup: dict[str, Any] | None = None

    @property
    def job_uid(self) -> int | None:
        """The job's own user on this host; None: it has none, and builds run as the host worker.

        The user that a container names is no job's own: a build ends all processes of its user.
        """
        return self.owner[0] if self.are_linked and self.owner is not None else None

    @property
    def certificates(self) -> Path | None:
        return None if self.ca_file is None else Path(self.ca_file)


class Progress:
    """What the supervisor reads. ``what``: what is fetched now. ``failure``: the newest thing that is tried again."""

    def __init__(self) -> None:
        self._what = "bundle"
        self._num_bytes = 0
        self._of_bytes = 0
        self.failure = ""
        self._next_s = 0.0
        self._lock = threading.Lock()

    def turn_to(self, what: str) -> None:
        self._what, self._num_bytes, self._of_bytes, self.failure, self._next_s = what, 0, 0, "", 0.0
        self._report()

    def begin(self, of_bytes: int) -> None:
        self._num_bytes, self._of_bytes = 0, of_bytes
        self._report()

    def advance(self, num_bytes: int) -> None:
        with self._lock:  # each connection has a thread
            self._num_bytes += num_bytes
            self._report()

    def note_failure(self, words: str) -> None:
        self.failure = words
        self._report()

    def _report(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + REPORT_PAUSE_S
            words = {"what": self._what, "have": self._num_bytes, "of": self._of_bytes, "failure": self.failure}
            report(words)


def report(line: dict[str, Any]) -> None:
    os.write(1, f"{json.dumps(line)}\n".encode())
