"""``SOCKET LEASE [--forwards] [-I] [-u] SCRIPT [ARGUMENT…]``, or ``-c CODE``, ``-m MODULE``: stands for Python.

With ``--forwards`` a signal is forwarded to the fork, which ends in its own time; by default it ends both at once.
"""

import ctypes
import json
import os
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main() -> None:
    path, lease, *arguments = sys.argv[1:]
    forwards = arguments[0] == "--forwards"
    if forwards:
        arguments.pop(0)
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is a fork to which they are forwarded
    else:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, as a gather's own process asks for itself
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        # Listed, and then asked: the listing's own descriptor is among them, and closed by then.
        listed = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208  # imports are what costs here
        given = [number for number in listed if number != channel.fileno() and _is_open(number)]
        channel.connect(path)
        order: dict[str, object] = {
            "lease": lease,
            "arguments": arguments,
            "environment": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109  # as above
            "descriptors": given,
        }
        order["umask"] = os.umask(0o077)
        socket.send_fds(channel, [json.dumps(order).encode()], given)
        fork = int(channel.recv(16))
        if forwards:
            for number in FORWARDED:
                signal.signal(number, lambda number, _frame: _send(fork, number))
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        status = int(channel.recv(16))
    if status >= 0:
        os._exit(status)
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it has ended, and its status is on the way


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
