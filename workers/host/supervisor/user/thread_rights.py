"""Another user's rights for the calling thread alone.

The C library's ``seteuid`` and ``setgroups`` change every thread of the process: while a launcher reads a program's
file, its other threads would be refused theirs. The kernel's own calls change only the calling thread.

Numbers: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import ctypes
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SETGROUPS, _SETRESGID, _SETRESUID = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}.get(
    os.uname().machine, (None, None, None)
)
_AS_IT_IS = -1
_libc = ctypes.CDLL(None, use_errno=True)


def set_groups(groups: Sequence[int]) -> None:
    """Set the supplementary groups. Raises OSError."""
    if _SETGROUPS is None:  # a machine whose numbers are not known here: for the whole process
        os.setgroups(groups)
        return
    _call(_SETGROUPS, len(groups), (ctypes.c_uint32 * len(groups))(*groups))


def set_effective(*, uid: int | None = None, gid: int | None = None) -> None:
    """Set the effective numbers; the saved ones remain, to return to. Raises OSError."""
    if gid is not None:
        os.setegid(gid) if _SETRESGID is None else _call(_SETRESGID, _AS_IT_IS, gid, _AS_IT_IS)
    if uid is not None:
        os.seteuid(uid) if _SETRESUID is None else _call(_SETRESUID, _AS_IT_IS, uid, _AS_IT_IS)


def _call(number: int, *arguments: object) -> None:
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    if _libc.syscall(ctypes.c_long(number), *given) != 0:
        fault = ctypes.get_errno()
        raise OSError(fault, os.strerror(fault))
