"""A gang of real processes on this machine, and the lead of their check in this one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from health.pairwise.check import PairwiseLimits
from workers.host.pairwise.lead import Check, Lead, Outcome

ROUND_S: Final = 200.0
"""A round of processes that all import torch at once, on a machine that does ten other things."""
RUN: Final = "a-test"


def names(number: int) -> tuple[str, ...]:
    return tuple(f"gpu-{index:02}" for index in range(number))


@dataclass(slots=True)
class Gang:
    """``reported``: what the lead reported. ``dies_when_here``: hosts killed when all came. ``python``: gathers."""

    folder: Path
    dies_when_here: frozenset[str] = frozenset()
    python: Path = Path(sys.executable)
    reported: list[str] = field(default_factory=list)
    processes: dict[str, "subprocess.Popen[str]"] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()

    def check(self, check: Check, failpoints: Mapping[str, str] | None = None) -> Outcome:
        """Lead it to its end. ``failpoints``: of a host's gathers."""

        def ready(port: int) -> None:
            for host in check.hosts:
                self.join(host, port, failpoint=(failpoints or {}).get(host))

        return asyncio.run(Lead(check, self._receive).run(("127.0.0.1", 0), ready))

    def _receive(self, line: str) -> None:
        self.reported.append(line)
        if sum(" is here" in each for each in self.reported) == len(self.processes):
            for host in self.dies_when_here:
                os.kill(self.processes[host].pid, signal.SIGKILL)

    def join(self, host: str, port: int, *, run: str = RUN, failpoint: str | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")}
        environment["MUSTER_JOB_PYTHON"] = str(self.python)
        if failpoint is not None:
            environment["MUSTER_TRAIN_FAILPOINT"] = failpoint
        words = ["agent", "pairwise", "join", f"127.0.0.1:{port}", "--run", run, "--name", host]
        self.processes[host] = subprocess.Popen(
            [sys.executable, "-m", "muster", *words],
            cwd=self.folder,
            env={**environment, "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ends(self, hosts: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Exit code and last words of each."""
        found = {}
        for host in hosts:
            said, errors = self.processes[host].communicate(timeout=ROUND_S)
            found[host] = self.processes[host].returncode, said.strip() or errors.strip()
        return found


def check_of(hosts: Sequence[str], *, slow_fraction: float = 0.2, wait_s: float = ROUND_S) -> Check:
    """Of few bytes, and lenient: a busy machine is no slow host."""
    return Check(
        hosts=tuple(hosts),
        run=RUN,
        device="cpu",
        gather_bytes=4 << 20,
        num_gathers=3,
        round_s=ROUND_S,
        wait_s=wait_s,
        limits=PairwiseLimits(slow_fraction=slow_fraction),
    )
