"""An interpreter that has imported its modules already: what is run by it takes milliseconds instead of seconds.

For tests of what happens among processes that train or gather, or of what a command does, not of how one starts.
``WarmPython.path`` is a client, which hands its arguments, environment, folder and descriptors to a fork of one warm
process, ends as that fork ends, and takes the fork along when it is killed.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[1]
PATIENCE_S: Final = 180.0
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_ROOM_BYTES: Final = 32_768
"""For a fork's own environment, which takes the place of the server's in /proc/PID/environ."""
_CLIENT: Final = ROOT / "tests" / "warm_python_client.py"
_SERVER: Final = ROOT / "tests" / "warm_python_server.py"


class WarmPython:
    """``folder``: of a short name, for a socket and the interpreter. Its forks end with it.

    ``modules``: imported before it forks; ``package.*`` is each module of a package.
    """

    def __init__(self, folder: Path, *modules: str) -> None:
        self.path = folder / "warm-python"
        socket = folder / "warm.socket"
        self.path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {_CLIENT} {socket} "$@"\n', encoding="utf-8")
        self.path.chmod(0o755)
        self.daemon = folder / "warm-daemon"
        """For what is asked to end by a signal, and ends in its own time."""
        self.daemon.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I -S {_CLIENT} {socket} --forwards "$@"\n', encoding="utf-8"
        )
        self.daemon.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), str(socket), *modules],
            env={"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "", "ROOM": " " * _ROOM_BYTES, **_ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def command(self, module: str) -> Path:
        """Return the folder of a program named as ``module``, which runs it: to be searched before the real one."""
        folder = self.path.parent / "programs"
        folder.mkdir(exist_ok=True)
        program = folder / module
        program.write_text(f'#!/bin/sh\nexec {self.path} -m {module} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        return folder

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE_S)
