"""One job's checkpoints and attempts at it under growing fences; the supervisor's end of the socket."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = HERE / "tiny_program.py"
PATIENCE_S = 180.0


def until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S, *, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {within_s} s"
        time.sleep(every_s)


class Zygote:
    """``modules``: imported before it forks, with what every rank needs."""

    def __init__(self, *modules: str) -> None:
        self._ends, ends = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "zygote.py"), str(ends), *modules],
            env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(ends,),
        )
        os.close(ends)
        assert self._answer() == "ready"

    def fork(self, order: Mapping[str, object]) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._answer())

    def wait_for_an_end(self, within_s: float) -> None:
        """Wait until a rank of any attempt has ended since the last call."""
        if select.select([self._ends], [], [], max(0.0, within_s))[0]:
            assert os.read(self._ends, 1 << 16), "the zygote has ended"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(PATIENCE_S)
        os.close(self._ends)


class Rank:
    def __init__(self, zygote: Zygote, place: Path, program: list[str], environment: dict[str, str]) -> None:
        place.mkdir(parents=True)
        (place / "output").touch()
        (place / "errors").touch()
        self._place = place
        files = {"output": str(place / "output"), "errors": str(place / "errors"), "exit": str(place / "exit")}
        self.pid = zygote.fork({"environment": environment, "program": program, **files})

    @property
    def code(self) -> int | None:
        try:
            return int((self._place / "exit").read_text(encoding="ascii"))
        except FileNotFoundError:
            return None

    @property
    def errors(self) -> str:
        return (self._place / "errors").read_text(encoding="utf-8")

    @property
    def output(self) -> str:
        return (self._place / "output").read_text(encoding="utf-8")

    @property
    def steps(self) -> dict[int, list[str]]:
        """What each step printed: two random numbers, a running mean, the loss, an averaged weight, the samples."""
        lines = self.output.splitlines(keepends=True)
        words = [line.split() for line in lines if line.endswith("\n")]
        return {int(line[1]): line[2:] for line in words if line[0] == "step"}

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Attempt:
    def __init__(self, zygote: Zygote, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self._zygote = zygote

    def ended(self) -> list[int]:
        """Every rank's exit code. A rank left behind by one that was killed is killed, as torchrun would."""
        deadline = time.monotonic() + PATIENCE_S
        while None in (codes := [rank.code for rank in self.ranks]):
            if any(code is not None and code < 0 for code in codes):
                for rank in self.ranks:
                    rank.kill()
            assert time.monotonic() < deadline, [rank.errors for rank in self.ranks]
            self._zygote.wait_for_an_end(deadline - time.monotonic())
        return [code for code in codes if code is not None]

    @property
    def steps(self) -> list[dict[int, list[str]]]:
        """Of each rank."""
        return [rank.steps for rank in self.ranks]


class Training:
    """A job's folder."""

    def __init__(self, zygote: Zygote, folder: Path) -> None:
        self.checkpoints = folder / "checkpoints"
        self._folder = folder
        self._zygote = zygote
        self._attempts: list[Attempt] = []

    def start(
        self,
        *arguments: str,
        num_ranks: int = 1,
        only: Mapping[int, Mapping[str, str]] | None = None,
        program: Path = PROGRAM,
        **variables: str,
    ) -> Attempt:
        """``only``: variables of single ranks. An empty variable is left out."""
        number = len(self._attempts) + 1
        shared = {
            "PATH": os.environ["PATH"],
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(num_ranks),
            "MUSTER_CHECKPOINT_DIR": str(self.checkpoints),
            "MUSTER_FENCE": str(number),
            "MUSTER_ATTEMPT_ID": f"att_{number}",
            **variables,
        }
        ranks = []
        for rank in range(num_ranks):
            place = self._folder / f"attempt-{number}" / str(rank)
            own = {**shared, "RANK": str(rank), **(only or {}).get(rank, {})}
            environment = {name: value for name, value in own.items() if value}
            ranks.append(Rank(self._zygote, place, [str(program), *arguments], environment))
        self._attempts.append(Attempt(self._zygote, ranks))
        return self._attempts[-1]

    def run(self, *arguments: str, num_ranks: int = 1, program: Path = PROGRAM, **variables: str) -> Attempt:
        """To its end, which must be a good one."""
        attempt = self.start(*arguments, num_ranks=num_ranks, only=None, program=program, **variables)
        assert attempt.ended() == [0] * num_ranks, [rank.errors for rank in attempt.ranks]
        return attempt

    def continue_from(self, other: "Training") -> None:
        """Begin with a copy of what another job has saved; attempts are counted from its last one on."""
        shutil.copytree(other.checkpoints, self.checkpoints)
        self._attempts = list(other._attempts)

    def generations(self) -> list[str]:
        """Return all generations in the folder, half-written ones too."""
        found = self.checkpoints.glob("step-*/*")
        return sorted(f"{path.parent.name}/{path.name}" for path in found)

    def close(self) -> None:
        for attempt in self._attempts:
            for rank in attempt.ranks:
                if rank.code is None:
                    rank.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def under_torchrun(program: Path, *arguments: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Two ranks of a real torchrun, which starts none of them again. ``folder``: for their checkpoints."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=0"]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MUSTER_CHECKPOINT_DIR": str(folder),
        **variables,
    }
    command = [sys.executable, *torchrun, str(program), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Listening:
    """The supervisor's end, for any number of ranks. ``is_deaf``: it accepts them and never reads."""

    def __init__(self, path: Path, *, is_deaf: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.reported: list[dict[str, Any]] = []
        self._is_deaf = is_deaf
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._ranks: list[socket.socket] = []
        self._kept: dict[int, bytes] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Read first what ranks sent before they ended."""
        self._is_closed = True
        self._thread.join(PATIENCE_S)
        for channel in (*self._ranks, self._listener):
            channel.close()

    def _listen(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, *([] if self._is_deaf else self._ranks)], [], [], 0.05)
            if not ready and self._is_closed:
                return
            for channel in ready:
                if channel is self._listener:
                    self._ranks.append(self._listener.accept()[0])
                else:
                    self._read(channel)

    def _read(self, channel: socket.socket) -> None:
        content = channel.recv(1 << 16)
        if not content:
            self._ranks.remove(channel)
            channel.close()
            return
        number = channel.fileno()
        *lines, self._kept[number] = (self._kept.get(number, b"") + content).split(b"\n")
        self.reported += [json.loads(line) for line in lines]

    def wait_for_connection(self) -> None:
        until(lambda: bool(self._ranks), "connection")

    def report(self, message: Mapping[str, object]) -> None:
        """To the rank that connected first, once one has."""
        until(lambda: bool(self._ranks), "rank that connects")
        self._ranks[0].sendall(json.dumps(message).encode() + b"\n")

    def received(self, kind: str, **fields: object) -> list[dict[str, Any]]:
        said = (message for message in tuple(self.reported) if message["type"] == kind)
        return [message for message in said if all(message.get(name) == value for name, value in fields.items())]

    def wait_for(self, kind: str, **fields: object) -> None:
        until(lambda: bool(self.received(kind, **fields)), f"{kind} {fields}")
