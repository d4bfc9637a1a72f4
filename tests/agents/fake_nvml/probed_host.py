"""The real probe on the fake library: each host is a process of its own, driven by lines of JSON."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.domain.gpu.metrics import INDEX
from tests.agents.fake_nvml.state import FakeState, map_state

SOURCE = Path(__file__).with_name("fake_nvml.c")
REPOSITORY = Path(__file__).parents[3]
DEADLINE_S = 3.0


@dataclass(frozen=True, slots=True)
class Libraries:
    """Folders that hold a ``libnvidia-ml.so.1`` each: of a driver of today, and of an older one."""

    today: Path
    older: Path


def build(compiler: str, target: Path, options: list[str]) -> None:
    shared = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *shared, *options, "-o", str(target), str(SOURCE)], check=True, timeout=110)


@dataclass(slots=True)
class ProbedHost:
    """A host with fake GPUs: ``state`` is what its driver says, the methods are the probe's."""

    state: FakeState
    process: subprocess.Popen[str]
    opening: Any
    """What opening the probe gave: "open", or the error."""

    def ask(self, do: str, **arguments: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def check(self, *, after_s: float = 0.0) -> list[dict[str, Any]]:
        """Check the GPUs, ``after_s`` later by the probe's clock, which stands still otherwise."""
        answer: list[dict[str, Any]] = self.ask("check", pass_s=after_s)
        return answer

    def inspect(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.ask("inspect")
        return answer

    def timed_check(self) -> tuple[list[dict[str, Any]], float]:
        """The checks, and the seconds that they took."""
        begun = time.monotonic()
        return self.check(), time.monotonic() - begun

    def events(self, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.ask("events", timeout_s=timeout_s)
        return answer

    def take_change(self, timeout_s: float = 5.0) -> tuple[list[dict[str, Any]], bool]:
        """Return the events of one wait, and whether the driver reported a change."""
        return self.events(timeout_s), self.ask("take_change")


class Hosts:
    """``warm``: an interpreter that has imported the probe's process already: most hosts are forks of it."""

    def __init__(self, folder: Path, libraries: Libraries, warm: Path) -> None:
        self._folder = folder
        self._libraries = libraries
        self._warm = warm
        self._processes: list[subprocess.Popen[str]] = []

    def state(self, num_gpus: int) -> FakeState:
        return map_state(self._folder / "nvml.state", num_gpus)

    def open(self, state: FakeState, *, library: str | None = "today", is_fresh: bool = False) -> ProbedHost:
        """``library``: ``today``, ``older``, or None for a host without a driver.

        ``is_fresh``: an interpreter of its own, for a test of how one ends.
        """
        variables = {**os.environ, "FAKE_NVML_STATE": str(self._folder / "nvml.state")}
        variables["LD_LIBRARY_PATH"] = str(getattr(self._libraries, library)) if library else ""
        process = subprocess.Popen(
            [
                sys.executable if is_fresh else str(self._warm),
                "-m",
                "tests.agents.fake_nvml.probe_process",
                str(DEADLINE_S),
            ],
            cwd=REPOSITORY,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        return ProbedHost(state, process, json.loads(process.stdout.readline()))

    def healthy(self, num_gpus: int = 2, *, is_fresh: bool = False) -> ProbedHost:
        host = self.open(self.state(num_gpus), is_fresh=is_fresh)
        assert host.opening == "open"
        return host

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def value(check: dict[str, Any], metric: str) -> float | None:
    found: float | None = check["values"][INDEX[metric]]
    return found
