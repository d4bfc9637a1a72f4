"""Paths of the host that a container may see: only paths that the job's user may reach, without links in them."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.missing import MOUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.host.supervisor.order_parts import Mount
    from workers.host.supervisor.user.job_user import JobUser

_SEPARATORS = re.compile(r"[,:\"\x00-\x1f\x7f]")


class MountError(Exception):
    """A path that the job requests for its container is missing or closed to it: the tenant's to fix."""

    lacks = MOUNT


def require_plain(mounts: Sequence[Mount]) -> None:
    """Refuse a mount with a separator in it, which engines would read as fields of another mount."""
    for mount in mounts:
        for path in (mount.source, mount.target):
            if _SEPARATORS.search(path):
                raise MountError(f"the mount {path!r} has a comma, colon, quote or control character in it")


def require_there(mounts: Sequence[Mount], user: JobUser) -> None:
    """Refuse a mount that the job's user may not reach: an engine that runs as root would mount it."""
    for mount in mounts:
        _require_place("mount", mount.source, user, os.R_OK)


def make_checkpoints(path: str, user: JobUser, *, is_named: bool) -> None:
    """Make the job's checkpoint folder, with no more rights than the job's user has.

    ``is_named``: by the tenant; above the host's own folder the operator may have links.
    """
    try:
        with user.acting():
            Path(path).mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as fault:
        raise MountError(f"{_whose(user)} cannot make the checkpoint folder {path}: {fault.strerror}") from fault
    place = path if is_named else f"{os.path.realpath(Path(path).parent)}/{Path(path).name}"
    _require_place("checkpoint folder", place, user, os.R_OK | os.W_OK | os.X_OK)


def _require_place(what: str, path: str, user: JobUser, mode: int) -> None:
    found = os.path.realpath(path)
    if not os.path.exists(found):  # noqa: PTH110  # no path object is needed
        raise MountError(f"the {what} {path} does not exist on this host")
    if found != path:  # the job's request was checked by the path that it names
        raise MountError(f"the {what} {path} is a link to {found}; name that one")
    if not user.may(found, mode):
        raise MountError(f"the {what} {path} is closed to {_whose(user)}")


def _whose(user: JobUser) -> str:
    return "the host worker's user" if user.uid is None else f"the job's user {user.uid}"


def hand_over(folder: Path, scratch: Path, others: Sequence[Path], user: str) -> None:
    """Give the container's user the folders that it writes to; it may pass through the attempt's folder, and no more.

    ``others``: outside of the attempt's folder. Links stay as they are, and so does the content of others: another
    program may have placed any link there.
    """
    uid, gid = map(int, user.split(":"))
    inside = (folder / name for name in (files.RANKS, files.PIPES, files.LAUNCH, files.FLIGHT))
    given = [path for place in (*inside, scratch) for path in (place, *([] if place.is_symlink() else place.glob("*")))]
    for path in [*given, *others]:
        with contextlib.suppress(FileNotFoundError):  # a bare command has neither pipes nor a launch folder
            os.chown(path, uid, gid, follow_symlinks=False)
    folder.chmod(0o711)
