"""The stack's keeper: a process that ends by itself, or is killed, is reported and started again."""

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from local.children import Child
from local.errors import EmbeddedServerError

KEEP_S: Final = 0.2


class Server(Protocol):
    @property
    def pid(self) -> int: ...

    def is_running(self) -> bool: ...

    def start(self) -> None: ...


class Keeper:
    """A check a few times a second, in a thread of its own, until closed. ``report`` gets a sentence for each end."""

    def __init__(self, servers: dict[str, Server], children: Sequence[Child], report: Callable[[str], None]) -> None:
        self._servers = servers
        self._children = tuple(children)
        self._report = report
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper")

    def start(self) -> None:
        self._thread.start()

    def watch(self, children: Sequence[Child]) -> None:
        """Watch these children too, from now on."""
        self._children = (*self._children, *children)

    def close(self) -> None:
        """End the thread. Afterwards no process is started any more."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        for name, server in self._servers.items():
            if not server.is_running() and not self._ending.is_set():
                self._report(f"{name} ended; starting it again")
                self._start(name, server)
        for child in self._children:
            if not self._ending.is_set() and (news := child.keep()):
                self._report(news)

    def _start(self, name: str, server: Server) -> None:
        try:
            server.start()
        except (EmbeddedServerError, OSError) as fault:
            self._report(f"{name} does not start: {fault}")

    def _run(self) -> None:
        while not self._ending.wait(KEEP_S):
            self.check()
