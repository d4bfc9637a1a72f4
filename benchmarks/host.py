"""A host of the local stack: cost of its idle agent, and time until a driver's event blocks placement."""

import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from agents.probes.faults import Fault, write_fault
from benchmarks.figures import Basis, Figure, Groups
from benchmarks.quick_policy import write_policy
from benchmarks.sizes import Sizes
from muster.client.rest import RestClient
from muster.ports import free_port

PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``gpus_of_agent``: of the idle host; ``gpus``: of the host whose GPUs fail. If equal, one
    host.
    """

    gpus_of_agent: int
    gpus: int
    settle_s: float
    idle_s: float
    is_quick: bool


SIZES: Final = Sizes(
    full=Size(gpus_of_agent=8, gpus=72, settle_s=10.0, idle_s=60.0, is_quick=False),
    smallest=Size(gpus_of_agent=2, gpus=2, settle_s=0.0, idle_s=1.0, is_quick=True),
)


def measure(size: Size) -> Groups:
    with ExitStack() as ending:
        stack = _started(ending, size.gpus_of_agent, size)
        yield _idle_agent(stack, size)
        if size.gpus != size.gpus_of_agent:
            ending.close()
            stack = _started(ending, size.gpus, size)
        yield [_blocked_after(stack)]


def _started(ending: ExitStack, num_gpus: int, size: Size) -> "_Stack":
    name = ending.enter_context(tempfile.TemporaryDirectory(prefix="muster-host-"))
    return ending.enter_context(_Stack(Path(name), num_gpus, is_quick=size.is_quick))


def _idle_agent(stack: "_Stack", size: Size) -> list[Figure]:
    time.sleep(size.settle_s)
    agent = stack.agent()
    before, began_s = sum(agent.cpu_times()[:2]), time.monotonic()
    time.sleep(size.idle_s)
    share = (sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - began_s) * 100
    memory_mib = agent.memory_info().rss / (1 << 20)
    name = f"agent of {size.gpus_of_agent} GPUs, idle"
    return [
        Figure(f"{name}: CPU", share, "%", 2.0, basis=Basis.CPU),
        Figure(f"{name}: memory", memory_mib, "MiB", 80.0, basis=Basis.COUNT),
    ]


def _blocked_after(stack: "_Stack") -> Figure:
    """Measure one XID after another, each on another GPU, with the circuit breaker out of the way."""
    times_s = [stack.blocked_after_s(gpu["uuid"]) for gpu in stack.operator.gpus()]
    quantiles = statistics.quantiles(times_s, n=100, method="inclusive")
    peers = {"p50 s": quantiles[49]}
    return Figure("driver's event → placement blocked, p99", quantiles[98], "s", 1.0, peers=peers, basis=Basis.CLOCK)


class _Stack:
    """Run of ``muster up`` with one simulated host whose GPUs are all HEALTHY."""

    def __init__(self, folder: Path, num_gpus: int, *, is_quick: bool) -> None:
        folder.chmod(0o711)
        self._num_gpus = num_gpus
        self.state = folder / "state"
        shares = ("fleet_window_share", "fleet_share", "rack_share", "cohort_share", "tenant_share")
        changes = {"health": {"breaker": dict.fromkeys(shares, 1.0)}}
        self._policy = write_policy(folder, is_quick=is_quick, changes=changes)

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "muster", "up", "--state-dir", str(self.state), "--hosts", "h100"]
        command += ["--gpus", str(self._num_gpus), "--port", str(free_port())]
        command += ["--policy", str(self._policy)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  # our own module
        try:
            self._wait_until_healthy()
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not (self.state / "cli.json").exists():
            _require_before(deadline, "the stack did not come up")
        profile = json.loads((self.state / "cli.json").read_text(encoding="utf-8"))
        key = Path(profile["operator_key_file"]).read_text(encoding="ascii").strip()
        self.operator = RestClient(profile["api_url"], key)
        while sum(gpu["standing"] == "HEALTHY" for gpu in self.operator.gpus()) < self._num_gpus:
            _require_before(deadline, "its GPUs did not become HEALTHY")

    def __exit__(self, *_: object) -> None:
        self.operator.close()
        self._stop()

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE_S)

    def agent(self) -> psutil.Process:
        found = psutil.Process(self._process.pid).children(recursive=True)
        return next(child for child in found if child.cmdline()[2:5] == ["muster", "agent", "run"])

    def blocked_after_s(self, uuid: str) -> float:
        write_fault(self.state / "faults.json", Fault(gpu=uuid, kind="xid", code=95, is_in_kernel_log=True))
        began_s = time.monotonic()
        while self._standing(uuid) != "QUARANTINED":
            _require_before(began_s + PATIENCE_S, f"{uuid} was not quarantined")
        return time.monotonic() - began_s

    def _standing(self, uuid: str) -> str:
        return self.operator.gpu(uuid)["standing"]


def _require_before(deadline: float, words: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(words)
    time.sleep(0.02)
