"""The supervisor as a program of its own: ``python -I -S entry.py ATTEMPT_FOLDER [--foreground]``.

Leaves its starter's process tree first, with nothing but ``os`` loaded, and says its pid on standard output.
"""

import os
import sys


def leave() -> None:
    """Fork; the parent says our pid and goes. What remains has no parent but init, no terminal, no descriptor."""
    pid = os.fork()
    if pid:
        os.write(1, str(pid).encode())
        os._exit(0)
    os.dup2(2, 1)
    os.closerange(3, 1 << 20)
    os.chdir("/")  # the starter's folder may be unmounted
    os.umask(0o077)


if __name__ == "__main__":
    if "--foreground" not in sys.argv[2:]:
        leave()
    # -I keeps every path of ours away; the package's root is asked for, last.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))  # noqa: PTH100, PTH118, PTH120  # pathlib comes with the package
    from workers.host.supervisor.supervise import main

    sys.exit(main(sys.argv[1]))
