"""``SOCKET MODULE…``: what ``warm_python`` forks from. Ends, and its forks with it, when its standard input does."""

import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.forks import code_of, forget_ended_forks, wake_when_a_fork_ends

MOST_BYTES: Final = 1 << 18
MOST_DESCRIPTORS: Final = 64


def run(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """In the fork: as a fresh interpreter would, for as long as the process that it came from lives."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setsid()
    forget_ended_forks()
    place(descriptors, order["descriptors"])
    os.environ.clear()
    os.environ.update(order["environment"])
    show_environment(order["environment"])
    os.chdir(order["folder"])
    os.umask(order["umask"])
    os._exit(code_of(main_of(order["arguments"])))


def show_environment(environment: dict[str, str]) -> None:
    """Put it in place of the server's in /proc/PID/environ, where the processes of an attempt are found by marks.

    The kernel shows the memory in which the first environment was: proc(5), fields 50 and 51 of stat. Nothing reads
    that copy, since each variable was set again. What does not fit is left out.
    """
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    start, size = int(fields[47]), int(fields[48]) - int(fields[47])
    content = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    ctypes.memmove(start, content[: size - 1].ljust(size, b"\0"), size)


def main_of(arguments: list[str]) -> Callable[[], object]:
    """Return what the interpreter's arguments ask for: ``-c CODE``, ``-m MODULE`` or a script, each with its own."""
    while arguments[0] in _FLAGS:
        if arguments.pop(0) == "-u":
            sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(end, "w"), write_through=True) for end in (1, 2))
    if arguments[0] in _MAINS:
        sys.argv = [arguments[0], *arguments[2:]]
        return partial(_MAINS[arguments[0]], arguments[1])
    sys.argv = arguments
    sys.path[:2] = [str(Path(arguments[0]).resolve().parent)]  # in place of our own folders
    return partial(runpy.run_path, arguments[0], run_name="__main__")


def _as_main(program: str) -> None:
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  # as -c does


def _module_as_main(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


_FLAGS: Final = ("-I", "-u")
_MAINS: Final[dict[str, Callable[[str], None]]] = {"-c": _as_main, "-m": _module_as_main}


def place(came: list[int], wanted: list[int]) -> None:
    """Each under the number that it had: first out of the way of all of these, then there; whatever else is closed."""
    above = max([*wanted, *came]) + 1
    moved = [os.dup2(number, above + index) for index, number in enumerate(came)]
    os.closerange(0, above)
    for number, target in zip(moved, wanted, strict=True):
        os.dup2(number, target)
    os.closerange(above, os.sysconf("SC_OPEN_MAX"))


class Forks:
    """By their clients."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.by_client: dict[socket.socket, int] = {}

    def accept(self) -> None:
        client, _ = self.listening.accept()
        content, descriptors, _, _ = socket.recv_fds(client, MOST_BYTES, MOST_DESCRIPTORS)
        if content:
            pid = os.fork()
            if pid == 0:
                run(json.loads(content), descriptors)
            self.by_client[client] = pid
            self._report(client, pid)
        for number in descriptors:
            os.close(number)

    def reap(self) -> None:
        for client, pid in list(self.by_client.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self.by_client[client]
                with client:
                    self._report(client, os.waitstatus_to_exitcode(status))

    def _report(self, client: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # it was killed, and its fork is for that
            client.send(str(number).encode())

    def kill(self, client: socket.socket) -> None:
        """The client sent everything when it came: what arrives from it now is its end."""
        os.kill(self.by_client[client], signal.SIGKILL)


def load(name: str) -> None:
    """``package.*``: each of its modules."""
    module = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            importlib.import_module(found.name)


def main(path: str, *modules: str) -> None:
    """What is run is there before the first fork."""
    for name in modules:
        load(name)
    gc.collect()
    gc.freeze()  # what is here stays shared with each fork
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(64)
        forks = Forks(listening)
        told = wake_when_a_fork_ends()
        print("ready", flush=True)  # noqa: T201
        while True:
            numbers = {client.fileno(): client for client in forks.by_client}
            ready, _, _ = select.select([0, told, listening.fileno(), *numbers], [], [])
            if 0 in ready:
                os._exit(0)
            for number in numbers.keys() & set(ready):
                forks.kill(numbers[number])  # first: its successor may need its port
            if listening.fileno() in ready:
                forks.accept()
            if told in ready:
                os.read(told, MOST_BYTES)
                forks.reap()


if __name__ == "__main__":
    main(*sys.argv[1:])
