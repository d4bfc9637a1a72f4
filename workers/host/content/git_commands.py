"""Git as a program that fetches one commit: no hook, no filter, no prompt, no redirect, no protocol but the URL's."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from workers.host.content.git_faults import GitFaultError, fault_of, needs_whole_fetch
from workers.host.content.git_secret import SecretAccess

_POLL_S: Final = 0.1
_MEASURE_S: Final = 0.5
_MOST_WORDS: Final = 1 << 14
_BYTES_A_FILE: Final = 1 << 10
"""Of the list of a commit's files, for each that a bundle may have: a tree may have another in it many times over."""
_FEW_WORDS: Final = 1 << 20
_CONFIG: Final = """
[protocol]
    allow = never
    version = 2
[http]
    followRedirects = false
    lowSpeedLimit = 1000
    lowSpeedTime = 60
[core]
    hooksPath = /dev/null
    attributesFile = /dev/null
    excludesFile = /dev/null
    fsmonitor = false
    autocrlf = false
[gc]
    auto = 0
[maintenance]
    auto = false
[safe]
    directory = *
"""
"""The only configuration: the host's and its users' could name filters, helpers and other repositories."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A path of a commit, by its mode there."""

    mode: str
    num_bytes: int
    path: str

    @property
    def is_submodule(self) -> bool:
        return self.mode == "160000"

    @property
    def is_file(self) -> bool:
        return self.mode.startswith("100")


class Repository:
    """A repository on this host that gets one commit of the one at ``url``.

    ``max_bytes``: of all that is fetched. ``free_bytes``: of the disk must stay free. ``within_s``: for all of it.
    """

    def __init__(
        self,
        folder: Path,
        log: Path,
        *,
        url: str,
        secret: bytes | None,
        secret_name: str | None,
        within_s: float,
        max_bytes: int,
        free_bytes: int,
    ) -> None:
        """Begin an empty one. Raises GitFaultError: this host has no git, or the secret is none for this URL."""
        if shutil.which("git", path=os.defpath) is None:
            raise GitFaultError("host", "this host has no `git`; its operator installs it")
        self._git_dir, self._tree, self._log = folder / "git", folder / "tree", log
        self._url = url
        self._secret_name = secret_name
        self._until_s = time.monotonic() + within_s
        self._max_bytes, self._free_bytes = max_bytes, free_bytes
        self._access = SecretAccess(urlsplit(url).scheme, secret, secret_name)
        config = folder / "config"
        scheme = urlsplit(url).scheme
        allowed = f'[protocol "{scheme}"]\n    allow = always\n'
        config.write_text(f"{_CONFIG}{allowed}{self._access.config}", encoding="utf-8")
        self._environment = {
            "PATH": os.defpath,
            "HOME": str(folder),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(config),
            "GIT_ALLOW_PROTOCOL": scheme,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "SSH_ASKPASS": "/bin/false",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            **self._access.environment,
        }
        self._run("init", "--quiet", "--template=")

    def fetch(self, commit: str) -> None:
        """Fetch the commit. Raises GitFaultError: it is not there, or the repository does not give it."""
        told = ("--quiet", "--no-tags", "--no-auto-gc", "--no-recurse-submodules", "--no-write-fetch-head")
        try:
            self._run("fetch", *told, "--depth=1", "--", self._url, commit)
        except GitFaultError as fault:
            if not needs_whole_fetch(fault.text):
                raise
            # It gives no single commit: an old server, or plain files over http.
            self._run("fetch", *told, "--", self._url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        try:
            kind = self._run("cat-file", "-t", commit).strip()
        except GitFaultError as fault:
            raise self._absent(commit) from fault
        if kind != "commit":
            raise GitFaultError("final", f"{commit} is a {kind}, and no commit: name the commit that it stands for")

    def _absent(self, commit: str) -> GitFaultError:
        return GitFaultError("final", f"the repository {self._url} has no commit {commit}: was it pushed?")

    def files_of(self, commit: str, max_files: int) -> list[FoundFile]:
        """Return the paths of a commit that is here. Raises GitFaultError: they are many more than ``max_files``."""
        found = []
        most = _FEW_WORDS + max_files * _BYTES_A_FILE
        for line in self._run("ls-tree", "-r", "-l", "-z", "--full-tree", commit, most_printed=most).split("\0"):
            about, is_path, path = line.partition("\t")
            if is_path:
                mode, _, _, size = about.split()
                found.append(FoundFile(mode, 0 if size == "-" else int(size), path))
        return found

    def check_out(self, commit: str, target: Path) -> None:
        """Write the files of a commit that is here into an empty folder."""
        self._tree = target
        self._run("checkout", "--quiet", "--force", "--detach", commit)

    def _run(self, command: str, *args: str, most_printed: int = _FEW_WORDS) -> str:
        """Return what the command prints. Raises GitFaultError: it fails, takes too long or too much of the disk."""
        line = ["git", f"--git-dir={self._git_dir}", f"--work-tree={self._tree}", command, *args]
        self._tree.mkdir(exist_ok=True)
        printed, errors = os.memfd_create("printed"), os.memfd_create("errors")
        try:
            process = subprocess.Popen(  # noqa: S603  # no shell; words of a checked URL and commit
                line,
                cwd=self._tree,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=errors,
                pass_fds=self._access.descriptors,
                start_new_session=True,
            )
            try:
                self._wait_for(process, lambda: os.fstat(printed).st_size > most_printed)
            finally:
                words = self._logged(command, errors)
            if process.returncode != 0:
                raise fault_of(words, self._url, self._secret_name)
            return os.pread(printed, os.fstat(printed).st_size, 0).decode("utf-8", "surrogateescape")
        finally:
            os.close(printed)
            os.close(errors)

    def _logged(self, command: str, errors: int) -> str:
        """Return the end of what git printed to its error stream, without the secret, and add it to the log."""
        num_bytes = os.fstat(errors).st_size
        end = os.pread(errors, _MOST_WORDS, max(0, num_bytes - _MOST_WORDS)).decode("utf-8", "replace")
        words = self._access.redacted(end)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"git {command}\n{words}")
        return words

    def _wait_for(self, process: "subprocess.Popen[bytes]", prints_too_much: Callable[[], bool]) -> None:
        """Wait for its end. Raises GitFaultError: it was ended, for its time or for its size."""
        measured_s = 0.0
        while process.poll() is None:
            now_s = time.monotonic()
            fault = None
            if now_s > self._until_s:
                fault = GitFaultError("passing", f"{self._url} did not give the commit in time")
            elif now_s > measured_s + _MEASURE_S:
                measured_s = now_s
                fault = self._outgrown(prints_too_much)
            if fault is not None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise fault
            time.sleep(_POLL_S)
        if (fault := self._outgrown(prints_too_much)) is not None:
            raise fault

    def _outgrown(self, prints_too_much: Callable[[], bool]) -> GitFaultError | None:
        if prints_too_much():
            return GitFaultError("final", "the commit has far more files than are accepted (content.bundle_files)")
        if _bytes_in(self._git_dir) > self._max_bytes:
            words = "the commit's packed files have more than twice the bytes of a bundle (content.bundle_bytes)"
            return GitFaultError("final", words)
        free = shutil.disk_usage(self._git_dir.parent).free
        return GitFaultError("host", "this host's disk is full") if free < self._free_bytes else None


def _bytes_in(folder: Path) -> int:
    found = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.lstat(f"{place}/{name}").st_blocks * 512
            except FileNotFoundError:  # it moved, or was removed
                continue
    return found
