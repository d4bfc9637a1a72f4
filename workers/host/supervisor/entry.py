"""The supervisor as a program of its own: ``python -I -S entry.py ATTEMPT_FOLDER [--foreground]``.

It leaves its starter's process tree first, with nothing but ``os`` loaded, and prints its pid on standard output.
``python -I -S entry.py --standby PYTHON`` waits with a warm torchrun for the folder, on its standard input.
"""

import os
import sys


def leave() -> None:
    """Fork; the parent prints our pid and ends. The child has no parent but init, no terminal, no descriptor."""
    pid = os.fork()
    if pid:
        os.write(1, str(pid).encode())
        os._exit(0)
    os.dup2(2, 1)
    os.closerange(3, 1 << 20)
    os.chdir("/")  # the starter's folder may be unmounted
    os.umask(0o077)


def run(arguments: list[str]) -> int:
    if "--foreground" not in arguments:
        leave()
    # -I removes our own paths from the search; the package's root is added last.
    sys.path.append(os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..")))  # noqa: PTH100, PTH118, PTH120  # pathlib comes with the package
    if arguments[0] == "--standby":
        from workers.host.supervisor import standby  # noqa: PLC0415  # after the path

        return standby.main(arguments[1])
    from workers.host.supervisor import supervise  # noqa: PLC0415  # after the path

    return supervise.main(arguments[0])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
