"""User of this host that a job's programs run as: by the job's number, from a range that no other user has."""

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from muster.settings import Settings, SettingsError
from workers.host.content.places import ENVIRONMENTS, OUTPUTS, WORK
from workers.host.supervisor.user.job_user import REACHES

SHARED_FOLDERS: Final = ("attempts", "checkpoints", ENVIRONMENTS, OUTPUTS, WORK)
"""Folders of the state folder that programs pass through; all others are closed to them."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class JobUsers:
    """Range of users, ``first`` to ``last``, the same on every host that shares a file system. None: our own user."""

    first: int | None = None
    last: int = 0

    def document(self, job_number: int | None) -> dict[str, Any]:
        """Return the user for the supervisor."""
        if self.first is None:
            who = "root" if os.geteuid() == 0 else f"the host worker's user {os.geteuid()}"
            return {"uid": None, "reason": f"MUSTER_JOB_UIDS is not set on this host: programs run as {who}"}
        if job_number is None:
            return {"uid": None, "refusal": "the control plane is older than this host and gives jobs no number"}
        return {"uid": self.first + job_number % (self.last - self.first + 1)}


def job_users(settings: Settings) -> JobUsers:
    """Return the range that is set, after checking that this host supports it.

    Raises:
        SettingsError: we are not root, the host is simulated, or a user of this host is in the range.
    """
    if settings.job_uids is None:
        if os.geteuid() == 0:
            _log.warning(
                "programs_run_as_root", why="MUSTER_JOB_UIDS is not set", instead="a range: 1879048192-2147352575"
            )
        return JobUsers()
    first, last = settings.job_uids
    if os.geteuid() != 0:
        raise SettingsError(
            [f"MUSTER_JOB_UIDS: needs a host worker that runs as root, and this is user {os.geteuid()}"]
        )
    if settings.simulated_boot_id is not None:
        raise SettingsError(
            ["MUSTER_JOB_UIDS: is not for simulated hosts: two on one machine would end each other's programs"]
        )
    taken = [f"{user.pw_name} ({user.pw_uid})" for user in pwd.getpwall() if first <= user.pw_uid <= last]
    if taken:
        raise SettingsError([f"MUSTER_JOB_UIDS: {first}-{last} holds users of this host: {', '.join(sorted(taken))}"])
    return JobUsers(first, last)


def open_ways(state_dir: Path, users: JobUsers) -> None:
    """Let programs reach their own folders below the state folder, and no others."""
    if users.first is None:
        return
    state_dir.mkdir(parents=True, exist_ok=True, mode=REACHES)
    for entry in state_dir.iterdir():
        if entry.name not in SHARED_FOLDERS and not entry.is_symlink():
            entry.chmod(stat.S_IMODE(entry.stat().st_mode) & ~0o077)
    for name in SHARED_FOLDERS:
        (state_dir / name).mkdir(exist_ok=True, mode=REACHES)
        (state_dir / name).chmod(REACHES)
    state_dir.chmod(REACHES)
