"""``DESCRIPTOR MODULE…``: what ``warm_python`` forks from. The descriptor is that of a socket which listens.

Ends, and its forks with it, when its standard input does. The forks of a lease end with the lease.
"""

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
from types import ModuleType
from typing import Any, Final, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.forks import code_of, forget_ended_forks, wake_when_a_fork_ends

MOST_BYTES: Final = 1 << 18
MOST_DESCRIPTORS: Final = 64


def run(order: dict[str, Any], descriptors: list[int], at_end: Callable[[], object]) -> NoReturn:
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
    code = code_of(main_of(order["arguments"]))
    code_of(at_end)
    os._exit(code)


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
            sys.stdout, sys.stderr = (
                io.TextIOWrapper(io.FileIO(end, "w", closefd=False), write_through=True) for end in (1, 2)
            )
    if arguments[0] in _MAINS:
        sys.argv = [arguments[0], *arguments[2:]]
        return partial(_MAINS[arguments[0]], arguments[1])
    sys.argv = arguments
    sys.path[:2] = [str(Path(arguments[0]).resolve().parent)]  # in place of our own folders
    return partial(runpy.run_path, arguments[0], run_name="__main__")


def _as_main(program: str) -> None:
    main_module = sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), vars(main_module))  # noqa: S102  # as -c does


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
    """Forks by their clients, and the leases for which they run."""

    def __init__(self, listening: socket.socket, at_end: Callable[[], object]) -> None:
        self.listening = listening
        self._at_end = at_end
        self._came: dict[int, socket.socket] = {}
        """By descriptor, the connections that have sent nothing yet."""
        self._leases: dict[int, tuple[socket.socket, str]] = {}
        self._clients: dict[int, tuple[socket.socket, int, str]] = {}

    def watched(self) -> list[int]:
        """Return the descriptors on which something may come."""
        return [self.listening.fileno(), *self._leases, *self._clients, *self._came]

    def act(self, ready: set[int]) -> None:
        """Do what the connections ask. Ends come first: a successor may need the port of a fork that is killed."""
        for number in self._clients.keys() & ready:
            # The client sent everything when it came: what arrives from it now is its end.
            os.kill(self._clients[number][1], signal.SIGKILL)
        for number in self._leases.keys() & ready:
            self._end_lease(number)
        for number in self._came.keys() & ready:
            self._receive(self._came.pop(number))
        if self.listening.fileno() in ready:
            connection, _ = self.listening.accept()
            self._came[connection.fileno()] = connection

    def _end_lease(self, number: int) -> None:
        lease, name = self._leases.pop(number)
        for _, pid, of in self._clients.values():
            if of == name:
                os.kill(pid, signal.SIGKILL)
        lease.close()

    def _receive(self, connection: socket.socket) -> None:
        content, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionError):  # it was killed as it came
            content, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_DESCRIPTORS)
        order: dict[str, Any] = json.loads(content) if content else {}
        number, lease = connection.fileno(), str(order.get("lease"))
        if order and "arguments" not in order:
            self._leases[number] = connection, lease
            _send(connection, "ready")
        elif order and any(lease == name for _, name in self._leases.values()):
            pid = os.fork()
            if pid == 0:
                run(order, descriptors, self._at_end)
            self._clients[number] = connection, pid, lease
            _send(connection, str(pid))
        else:
            connection.close()
        for each in descriptors:
            os.close(each)

    def reap(self) -> None:
        for number, (client, pid, _) in list(self._clients.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._clients[number]
                with client:
                    _send(client, str(os.waitstatus_to_exitcode(status)))


def _send(client: socket.socket, word: str) -> None:
    with contextlib.suppress(OSError):  # it was killed, and its fork is for that
        client.send(word.encode())


def load(name: str) -> None:
    """``package.*``: each of its modules."""
    module = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            importlib.import_module(found.name)


def serve(descriptor: int, prepare: Callable[[], object], at_end: Callable[[], object] = lambda: None) -> NoReturn:
    """Fork for each client. ``prepare`` is called when the first comes; each fork calls ``at_end`` before it ends."""
    with socket.socket(fileno=descriptor) as listening:
        if 0 in select.select([0, descriptor], [], [])[0]:
            os._exit(0)
        prepare()
        gc.collect()
        gc.freeze()  # what is here stays shared with each fork
        forks = Forks(listening, at_end)
        told = wake_when_a_fork_ends()
        while True:
            ready = set(select.select([0, told, *forks.watched()], [], [])[0])
            if 0 in ready:
                os._exit(0)
            forks.act(ready)
            if told in ready:
                os.read(told, MOST_BYTES)
                forks.reap()


def main(descriptor: str, *modules: str) -> None:
    """What is run is there before the first fork."""
    serve(int(descriptor), partial(_prepare, modules))


def _prepare(modules: tuple[str, ...]) -> None:
    for name in modules:
        load(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
