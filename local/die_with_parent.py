"""A program that becomes another program, which the kernel signals when the process that started it dies.

Run as a script, by the same interpreter, standard library only:

    python -I -S die_with_parent.py PARENT_PID SIGNAL UID GID PROGRAM [ARGUMENT ...]

A UID of -1 keeps the user. The order matters: the kernel forgets the death signal when the user changes, and keeps it
over an exec of an ordinary program. The signal is set here, after the fork, rather than in a `preexec_fn`, which may
deadlock in a parent with threads. The signal follows the parent's *thread* that forked, which is why `processes` forks
from one that lives as long as its process. Only Linux has it; elsewhere a killed parent leaves its servers to the next
start, which stops them.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent_pid, signal_number, uid, gid = (int(number) for number in arguments[:4])
    program = arguments[4:]
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
            sys.exit(f"die_with_parent: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent_pid:
        # The parent died between the fork and the line above, so the kernel will send no signal.
        sys.exit("die_with_parent: the parent has ended")
    os.execv(program[0], program)  # noqa: S606  # no shell, and the caller names the program


if __name__ == "__main__":
    main(sys.argv[1:])
