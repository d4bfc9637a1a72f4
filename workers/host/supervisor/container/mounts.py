"""What a container sees of the host: only what the job's user may reach, by the path that is named and no link."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from workers.host.supervisor import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from workers.host.supervisor.order import Mount
    from workers.host.supervisor.user.job_user import JobUser

_SEPARATORS = re.compile(r"[,:\"\x00-\x1f\x7f]")


class MountError(Exception):
    """What the job asks for its container is not there, or not for it: the tenant's to mend."""


def require_plain(mounts: Sequence[Mount]) -> None:
    """Engines read a mount's words as fields, so that one with a separator in it would be another mount."""
    for mount in mounts:
        for path in (mount.source, mount.target):
            if _SEPARATORS.search(path):
                raise MountError(f"the mount {path!r} has a comma, colon, quote or control character in it")


def require_there(mounts: Sequence[Mount], user: JobUser) -> None:
    """An engine that runs as root mounts whatever is named, so what the job's user may not reach is refused here."""
    for mount in mounts:
        _require_place("mount", mount.source, user, os.R_OK)


def make_checkpoints(path: str, user: JobUser, *, is_named: bool) -> None:
    """The job's checkpoint folder, with no more rights than the job's user has.

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
    if not os.path.exists(found):  # noqa: PTH110  # nothing of a path object is needed
        raise MountError(f"the {what} {path} does not exist on this host")
    if found != path:  # the job's words were judged by the path that they name
        raise MountError(f"the {what} {path} is a link to {found}; name that one")
    if not user.may(found, mode):
        raise MountError(f"the {what} {path} is closed to {_whose(user)}")


def _whose(user: JobUser) -> str:
    return "the host worker's user" if user.uid is None else f"the job's user {user.uid}"


def hand_over(folder: Path, scratch: Path, checkpoints: Path | None, user: str) -> None:
    """What the container's user writes becomes its own; of the attempt's folder it may pass through, and no more.

    Links stay as they are, and what lies in the checkpoint folder too: whoever wrote there may have laid out any.
    """
    uid, gid = map(int, user.split(":"))
    inside = (folder / name for name in (files.RANKS, files.PIPES, files.LAUNCH, files.FLIGHT))
    given = [path for place in (*inside, scratch) for path in (place, *([] if place.is_symlink() else place.glob("*")))]
    for path in [*given, *([] if checkpoints is None else [checkpoints])]:
        with contextlib.suppress(FileNotFoundError):  # a bare command has neither pipes nor a launch folder
            os.chown(path, uid, gid, follow_symlinks=False)
    folder.chmod(0o711)
