"""An interpreter that has imported its modules already: what is run by it takes milliseconds instead of seconds.

For tests of what happens among processes that train or gather, or of what a command does, not of how one starts.
``WarmPython.path`` is a client, which hands its arguments, environment, folder and descriptors to a fork of one warm
process, ends as that fork ends, and takes the fork along when it is killed.

The workers of one run share the warm process (``tests/forked_workers.py``), and each has a lease of it: a connection,
with which the forks of that worker end.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE_S: Final = 180.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_ROOM_BYTES: Final = 32_768
"""For a fork's own environment, which takes the place of the server's in /proc/PID/environ."""
_MOST_WAITING: Final = 64
_CLIENT: Final = ROOT / "tests" / "warm_python_client.py"
_SERVER: Final = ROOT / "tests" / "warm_python_server.py"

_OF_A_STACK: Final = (
    "api.serve",
    "console.app",
    "workers.control.scheduler_loop",
    "workers.control.main",
    "workers.host.main",
    "agents.daemon",
    "agents.probes.simulated",
    "agents.scan.scan",
)
# Not the runtime itself, which receives a stop from its import on. An optimizer imports dynamo at its first step.
_OF_A_TRAINING: Final = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.utils.data",
    "muster.train.parallel.pairwise",
)
_OF_A_COMMAND: Final = (
    "muster.cli.*",
    "muster.client.rest",
    "local.local_stack",
    "control.core.unit_of_work",
    "workers.local.local_run",
    "agents.scan.scan",
    "agents.probes.simulated",
)
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "warm_python": _OF_A_TRAINING,
    "warm_muster": _OF_A_COMMAND,
    "warm_stack": ("muster.cli.host.processes", "muster.cli.framework.app", *_OF_A_STACK),
}
"""By fixture, the modules that its interpreter has imported; ``package.*`` is each module of a package."""


class WarmServer:
    """The process that forks. It imports its modules once the first lease is asked for, and ends with this process."""

    def __init__(self, folder: Path, program: Path, *arguments: str, environment: dict[str, str]) -> None:
        folder.mkdir()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(socket_in(folder)))
            listening.listen(_MOST_WAITING)
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(listening.fileno()), *arguments],
                env={**environment, "ROOM": " " * _ROOM_BYTES},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
                start_new_session=True,  # Ctrl-C ends the tests, and their end ends the server
            )

    @classmethod
    def of(cls, name: str, folder: Path) -> Self:
        """Start the server behind the fixture ``name``. ``folder`` is made, and has a short name, for a socket."""
        environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", **_ONE_THREAD}
        return cls(folder, _SERVER, *MODULES[name], environment=environment)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)


class WarmPython:
    """A lease of a server, whose forks end with it, and in ``folder`` the programs that stand for the interpreter.

    ``server``: the folder of that server.
    """

    def __init__(self, folder: Path, server: Path) -> None:
        self._folder = folder
        self._socket = socket_in(server)
        self._lease = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        name = f"{os.getpid()}:{folder}"
        self._name = name
        self.path = self._program("warm-python")
        self.daemon = self._program("warm-daemon", "--forwards ")
        """For what is asked to end by a signal, and ends in its own time."""

    def _program(self, name: str, option: str = "") -> Path:
        program = self._folder / name
        words = f"{sys.executable} -I -S {_CLIENT} {self._socket} {self._name} {option}"
        program.write_text(f'#!/bin/sh\nexec {words}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return program

    def command(self, module: str) -> Path:
        """Return the folder of a program named as ``module``, which runs it: to be searched before the real one."""
        folder = self._folder / "programs"
        folder.mkdir(exist_ok=True)
        program = folder / module
        program.write_text(f'#!/bin/sh\nexec {self.path} -m {module} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return folder

    def __enter__(self) -> Self:
        self._lease.connect(str(self._socket))
        self._lease.send(json.dumps({"lease": self._name}).encode())
        assert self._lease.recv(16) == b"ready"
        return self

    def __exit__(self, *_: object) -> None:
        with self._lease, contextlib.suppress(ConnectionError):  # the server has ended, and the forks with it
            self._lease.shutdown(socket.SHUT_WR)
            assert self._lease.recv(16) == b"", "the server ends the lease once it has killed its forks"


def socket_in(folder: Path) -> Path:
    """Return the path of the socket by which the server of a folder is reached."""
    return folder / "warm.socket"


@contextlib.contextmanager
def warm_python_of(name: str, folder: Path, shared: Path | None) -> Iterator[WarmPython]:
    """Yield a lease for the fixture ``name``: of the server in ``shared``, or of one that is started for this lease.

    ``folder``: where either may make a folder of its own.
    """
    own = folder / name
    own.mkdir()
    with contextlib.ExitStack() as servers:
        if shared is None:
            server = own / "server"
            servers.enter_context(WarmServer.of(name, server))
        else:
            server = shared / name
        with WarmPython(own, server) as warm:
            yield warm
