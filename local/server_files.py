"""The place of an embedded server's files, and their owner.

A server started by root runs as an unprivileged user, who must be able to reach its folder. Nothing outside that folder
is ever changed: where a parent is closed to that user, the files move to a place that is open; the file `location`
names it.
"""

import fcntl
import hashlib
import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import structlog

from local.errors import EmbeddedServerError

# sockaddr_un.sun_path holds 108 bytes with the closing zero on Linux, 104 on macOS.
MAX_SOCKET_PATH_BYTES = 103
_LOCATION = "location"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Owner:
    """The unprivileged user a server runs as."""

    uid: int
    gid: int


def owner_for(directory: Path) -> Owner | None:
    """Return the user for a server on this folder; None: the present user, who is no superuser."""
    if os.geteuid() != 0:
        return None
    if directory.exists() and (status := directory.stat()).st_uid != 0:
        return Owner(status.st_uid, status.st_gid)
    nobody = pwd.getpwnam("nobody")
    return Owner(nobody.pw_uid, nobody.pw_gid)


def is_reachable(path: Path, owner: Owner) -> bool:
    """Return whether that user may traverse every folder above `path`."""
    return all(_may_enter(parent.stat(), owner) for parent in path.resolve().parents)


def _may_enter(status: os.stat_result, owner: Owner) -> bool:
    if status.st_uid == owner.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == owner.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


@dataclass(frozen=True, slots=True)
class ServerHome:
    """A server's private folder, mode 0700, locked by the one process that runs the server."""

    path: Path
    owner: Owner | None

    def sub_directory(self, name: str) -> Path:
        directory = self.path / name
        directory.mkdir(mode=0o700, exist_ok=True)
        give_to(directory, self.owner)
        return directory

    def socket_directory(self, socket_name: str) -> Path:
        """Return a private folder whose sockets' paths fit the kernel's limit.

        It is inside the home, or linked from there.
        """
        link = self.path / "socket"
        if _is_fit_for_socket(link / socket_name):
            return self.sub_directory("socket")
        if link.is_symlink() and link.is_dir() and link.stat().st_uid == self._uid:
            return link.resolve()
        # A reboot empties the places of short names; the link then points nowhere and is made again.
        link.unlink(missing_ok=True)
        short = _short_directory(socket_name, self.owner)
        give_to(short, self.owner)
        link.symlink_to(short)
        return short

    @property
    def _uid(self) -> int:
        return self.owner.uid if self.owner else os.geteuid()

    def lock(self) -> TextIO:
        """Return the lock, held until closed or until this process dies.

        Raises EmbeddedServerError where another process runs the server here.
        """
        held = (self.path / "lock").open("a+")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            holder = held.read().strip() or "unknown"
            held.close()
            raise EmbeddedServerError(
                f"process {holder} already runs the server in {self.path}; stop it, or use another folder"
            ) from None
        held.truncate(0)
        held.write(f"{os.getpid()}\n")
        held.flush()
        return held


def prepare_home(data_dir: Path) -> ServerHome:
    """Make, or find again, the folder for a server whose data should live in `data_dir`."""
    data_dir = data_dir.absolute()
    owner = owner_for(data_dir)
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = data_dir if owner is None or is_reachable(data_dir, owner) else _elsewhere(data_dir)
    give_to(path, owner)
    path.chmod(0o700)
    return ServerHome(path, owner)


def _elsewhere(data_dir: Path) -> Path:
    """Return the open place that stands in for `data_dir`, the same one at every start."""
    record = data_dir / _LOCATION
    if record.exists() and (recorded := Path(record.read_text().strip())).is_dir():
        return recorded
    # A name of its own, not one made from the path alone: a new checkout must never find an old one's data.
    digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:8]
    place = Path(tempfile.mkdtemp(prefix=f"muster-embedded-{digest}-", dir=open_parent()))
    record.write_text(f"{place}\n")
    log.warning(
        "embedded_server_relocated", asked=str(data_dir), used=str(place), reason="closed to the unprivileged user"
    )
    return place


def open_parent() -> Path:
    """Return a lasting folder that every user may traverse and root may write."""
    var_lib = Path("/var/lib")
    return var_lib if os.access(var_lib, os.W_OK) else Path(tempfile.gettempdir())


def _is_fit_for_socket(path: Path) -> bool:
    """Return whether it is within the kernel's limit, and without characters at which libpq splits a list of hosts."""
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and not set(str(path)) & set(',"')


def _short_directory(socket_name: str, owner: Owner | None) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    parents = [Path(tempfile.gettempdir()), Path("/tmp")]  # noqa: S108  # only to hold a private folder of a random name
    if owner is None and runtime:
        parents.insert(0, Path(runtime))
    for parent in parents:
        longest = parent / "muster-01234567" / socket_name
        fits = _is_fit_for_socket(longest) and os.access(parent, os.W_OK)
        if fits and (owner is None or is_reachable(parent / "socket", owner)):
            return Path(tempfile.mkdtemp(prefix="muster-", dir=parent))
    raise EmbeddedServerError("no folder of a short name can hold a socket; set TMPDIR to one that may be written")


def give_to(path: Path, owner: Owner | None) -> None:
    if owner is not None:
        os.chown(path, owner.uid, owner.gid)
