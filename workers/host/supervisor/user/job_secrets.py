"""Secrets of a job, given to the program in memory alone: as files, and as variables where the job names one.

The launcher received them from the control plane (``sealed_secrets``), or the operator stored files on this host.

The place is a folder of /dev/shm, 0700 and the job's user's, rather than a mount of its own. It protects as much
against all but root, needs no CAP_SYS_ADMIN, and needs no unmount after a supervisor has died. Its name follows from
the attempt's folder. If that was removed too, as when a machine's state was deleted under a crash, nothing would ever
find it. So its supervisor holds a lock on it as long as it lives, and an unlocked folder is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time
from pathlib import Path

from workers.host.supervisor.missing import SECRET, SECRETS
from workers.host.supervisor.user import sealed_secrets
from workers.host.supervisor.user.redaction import Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.host.supervisor.user.job_user import JobUser

MOST_BYTES = 64 << 10
_MEMORY = sealed_secrets.MEMORY
_MOUNTS = Path("/proc/self/mounts")
_PREFIX = "muster-secrets-"
_FRESH_S = 60.0
"""Age below which its supervisor may not hold the lock yet."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")


class MissingSecretError(Exception):
    """The job names a secret that its tenant does not have on this host."""

    lacks = SECRET


class UnfitSecretError(MissingSecretError):
    """The secret cannot be the variable that the job asks for."""


class SecretsError(OSError):
    """This host cannot give secrets as it should."""


class NoSecretsError(SecretsError):
    """This host's operator has not set it up for secrets, or not for this one."""

    lacks = SECRETS


class NotReceivedError(SecretsError):
    """The control plane has the secret and cannot open it, which a person has to repair: no further try helps."""

    lacks = SECRETS


class JobSecrets:
    """Secrets of one job. ``source``: the tenant's folder on this host; None: the host has no secrets.

    ``sealed``: the part of ``names`` that the launcher received, for the attempt in ``folder``. ``variables``: variable
    → the secret whose value it has, which is a file as well. Values are never in the order.
    """

    def __init__(
        self,
        source: Path | None = None,
        names: tuple[str, ...] = (),
        sealed: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        self.source = source
        self.names = names
        self.sealed = sealed
        self.variables = variables or {}
        self.folder: Path | None = None

    @classmethod
    def read(cls, document: dict[str, Any]) -> JobSecrets:
        """Read the names. Raises ValueError for a name that is no plain file's name."""
        names = tuple(str(name) for name in document.get("names", ()))
        if wrong := [name for name in names if not _NAME.fullmatch(name)]:
            raise ValueError(f"secrets: {wrong[0]!r} is no name of a secret")
        source = document.get("source")
        sealed = tuple(str(name) for name in document.get("sealed", ()))  # an older launcher knows neither of these
        variables = {str(variable): str(name) for variable, name in document.get("variables", {}).items()}
        return cls(None if source is None else Path(source), names, sealed, variables)

    def place(self, folder: Path) -> Path:
        """Return the place of an attempt's secrets; it follows from the attempt's folder, so that a reaper finds it
        too.
        """
        return sealed_secrets.place_in_memory(_PREFIX, folder)

    def give(self, folder: Path, user: JobUser) -> dict[str, str]:
        """Write them for the program, 0400 and its own. Returns the variables of its environment.

        Raises:
            MissingSecretError: there is none of that name for this tenant.
            SecretsError: this host keeps no secrets, keeps one where others may read it, or has no folder in memory.
        """
        if not self.names:
            return {}
        if not is_in_memory(_MEMORY, _MOUNTS):
            raise NoSecretsError(f"{_MEMORY} is no file system in memory, and secrets are put nowhere else")
        if self.sealed and not _is_taken(sealed_secrets.place_of(folder)):
            raise SecretsError(f"{sealed_secrets.place_of(folder)} is another supervisor's")
        values = {name: self._value(name) for name in self.names}
        environment = {variable: _text_of(name, values[name]) for variable, name in self.variables.items()}
        place = self.place(folder)
        user.make_folder(place)
        found = place.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {os.geteuid(), user.uid}:
            raise SecretsError(f"{place} belongs to user {found.st_uid}")
        if not _is_taken(place):
            raise SecretsError(f"{place} is another supervisor's")
        for name, value in values.items():
            sealed_secrets.write_new(place / name, value)
            user.own(place / name)
        return {**environment, "MUSTER_SECRETS_DIR": str(place)}

    def redactor(self) -> Redactor:
        """Return a redactor of the secrets that can be read now: a file that was replaced meanwhile is not this
        attempt's.

        Received ones no longer exist after a reboot. Then all that the program wrote is withheld: it may hold them.
        """
        values = []
        for name in self.names:
            try:
                values.append(self._value(name))
            except (MissingSecretError, OSError):
                continue
        is_lost = bool(self.sealed) and self.folder is not None and not sealed_secrets.is_whole(self.folder)
        return Redactor(values, withholds_all=is_lost)

    def remove(self, folder: Path) -> bool:
        """Remove them and return whether none is left."""
        place = self.place(folder)
        shutil.rmtree(place, ignore_errors=True)
        is_rest_gone = sealed_secrets.remove(folder) if self.sealed else True
        return not self.names or (not place.exists() and is_rest_gone)

    def _value(self, name: str) -> bytes:
        if name in self.sealed:
            return self._received(name)
        if self.source is None:
            raise NoSecretsError(f"the secret {name}: this host keeps no secrets (MUSTER_JOB_SECRETS_DIR is not set)")
        path = self.source / name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise MissingSecretError(f"the secret {name} is not on this host; its operator puts it in {path}") from None
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
                raise NoSecretsError(f"the secret {name}: {path} must be a file of mode 0600 or 0400")
            value = file.read(MOST_BYTES + 1)
        if len(value) > MOST_BYTES:
            raise NoSecretsError(f"the secret {name}: {path} is larger than {MOST_BYTES >> 10} KiB")
        return value

    def _received(self, name: str) -> bytes:
        if self.folder is None:
            raise SecretsError(f"the secret {name}: the folder of its attempt is not known")
        try:
            value = sealed_secrets.value_of(self.folder, name)
        except FileNotFoundError:
            raise SecretsError(f"the secret {name} is not in this host's memory any more") from None
        except OSError as fault:
            raise NotReceivedError(f"the secret {name} was not received: {fault}") from fault
        if value is None:
            raise MissingSecretError(f"the secret {name} was deleted, or limited to other jobs, after the submission")
        return value


def _text_of(name: str, value: bytes) -> str:
    """Return the value as a variable has it, without the line break at its end. Raises UnfitSecretError."""
    if b"\x00" in value:
        raise UnfitSecretError(f"the secret {name} has a byte 0, which no variable can have: let the job read its file")
    return os.fsdecode(value.removesuffix(b"\n").removesuffix(b"\r"))


def sweep(memory: Path = _MEMORY) -> list[Path]:
    """Remove our folders without a supervisor's lock. Returns the removed ones.

    Received secrets of an attempt whose folder exists are left alone, also before its supervisor holds the lock: the
    bundle comes first. Its launcher removes its rest, these too.
    """
    swept = []
    ours = (memory.glob(f"{prefix}{os.getuid()}-*") for prefix in (_PREFIX, sealed_secrets.PREFIX))
    for place in (place for found in ours for place in found):
        with contextlib.suppress(OSError):  # another launcher was quicker, or we may not remove it
            found = place.lstat()
            if not stat.S_ISDIR(found.st_mode) or time.time() - found.st_mtime < _FRESH_S:
                continue
            if sealed_secrets.belongs_to_attempt(place):
                continue
            _remove_unlocked(place)
            swept.append(place)
    return swept


def _remove_unlocked(place: Path) -> None:
    """Remove the folder. Raises OSError: its supervisor lives and holds the lock."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(place)
    finally:
        os.close(descriptor)


def _is_taken(place: Path) -> bool:
    """Lock the folder for as long as this process lives: the descriptor is never closed, and no program inherits it."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def is_in_memory(folder: Path, mounts: Path) -> bool:
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.split(" ")[1:3] == [str(folder), "tmpfs"] for line in lines)
