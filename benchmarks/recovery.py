"""Time from the death of a rank to the first step of the next attempt, compared with a bare torchrun start.

The second figure is the time from the death of a torchrun until none of its ranks lives and none of its ports is open.
"""

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.launches import REST_S, wait_for_profile, wait_for_proved_gpus
from benchmarks.quick_policy import write_policy
from benchmarks.sizes import Sizes
from muster.client.rest import RestClient
from muster.ports import free_port
from workers.host.supervisor.proof.processes import listening_ports, living_processes

PATIENCE_S = 120.0
OWN_S = 2.0
"""Time of a recovery beyond a start: to see the death, prove the host clean, place, read the checkpoint."""
GONE_S = 2.0
"""Time until nothing is left after kill -9 of a torchrun."""
NO_PAUSE: Final = {"dispatch": {"retry_backoff_s": 0.001, "retry_backoff_max_s": 0.001}}
"""Policy without the pause before a next attempt, which is no work."""
SCRIPT = """
import os, time, torch
from muster import train
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = train.start(model, optimizer, checkpoint_every=5)
for step in run.steps(100_000):
    optimizer.zero_grad()
    torch.autograd.backward(run.model(torch.ones(8, 64)).sum())
    optimizer.step()
    run.report(loss=0.0)
    print(f"step {step} {time.time()} {os.getpid()}\\n", end="", flush=True)
    time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``steps``: that a rank has done when a process of its program is killed."""

    ranks: int
    times: int
    steps: int
    rest_s: float
    is_quick: bool


SIZES: Final = Sizes(
    full=Size(ranks=2, times=3, steps=20, rest_s=REST_S, is_quick=False),
    smallest=Size(ranks=1, times=1, steps=1, rest_s=0.0, is_quick=True),
)


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-recovery-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        script = folder / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        command = [sys.executable, "-m", "muster", "up", "--no-tour", "--hosts", "h100", "--gpus", str(size.ranks)]
        command += ["--state-dir", str(folder / "state"), "--port", str(free_port())]
        command += ["--policy", str(write_policy(folder, is_quick=size.is_quick, changes=NO_PAUSE))]
        stack = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  # our own module
        try:
            profile = wait_for_profile(folder / "state" / "cli.json")
            # The smallest size keeps no figure, so its bare start may run while the GPUs are still on probation.
            if not size.is_quick:
                wait_for_proved_gpus(profile, size.rest_s)
            bare_s = statistics.median(_bare(script, size) for _ in range(size.times))
            wait_for_proved_gpus(profile)
            killed = [_killed(profile, script, size) for _ in range(size.times)]
            ours_s = statistics.median(recovered_s for recovered_s, _ in killed)
            gone_s = max(gone_s for _, gone_s in killed)
        finally:
            stack.send_signal(signal.SIGINT)
            stack.wait(60)
    peers = {"death → step s": ours_s, "bare torchrun → step s": bare_s}
    over, gone = (
        "worker death → next step, no pause, over bare torchrun",
        "torchrun's death → no rank lives, no port is held, longest",
    )
    yield [
        Figure(over, ours_s - bare_s, "s", OWN_S, peers=peers, basis=Basis.CLOCK),
        Figure(gone, gone_s, "s", GONE_S, basis=Basis.CLOCK),
    ]


def _bare(script: Path, size: Size) -> float:
    """Return the time from its start to its first step."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(size.ranks),
        "--standalone",
        str(script),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = time.time()
    unheard = subprocess.DEVNULL
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=unheard, text=True) as process:  # noqa: S603  # fixed arguments
        first = next(line for line in process.stdout or () if line.startswith("step "))
        process.send_signal(signal.SIGTERM)
    return float(first.split()[2]) - started


def _killed(profile: dict[str, str], script: Path, size: Size) -> tuple[float, float]:
    """Return both times of one job, whose first attempt loses a rank and whose second loses its torchrun."""
    with _training(profile, script, size.ranks) as (client, job_id):
        return _recovered_s(client, job_id, size), _gone_s(client, job_id, size)


def _recovered_s(client: RestClient, job_id: str, size: Size) -> float:
    """Return the time from SIGKILL of a rank to the first step of the next attempt."""
    lines = _awaited(lambda: _lines(client, job_id, size, attempt=1), lambda found: len(found) >= size.steps)
    killed = time.time()
    os.kill(_pid_in(lines[-1]), signal.SIGKILL)
    again = _awaited(lambda: _lines(client, job_id, size, attempt=2), bool)
    return float(again[0].split()[2]) - killed


def _gone_s(client: RestClient, job_id: str, size: Size) -> float:
    """Return the time from SIGKILL of the torchrun until its processes have ended and their ports are closed."""
    lines = _awaited(lambda: _lines(client, job_id, size, attempt=2), lambda found: len(found) >= size.steps)
    entry = psutil.Process(_pid_in(lines[-1])).parent()
    torchrun = None if entry is None else entry.parent()
    if torchrun is None:
        message = "the rank has ended before its torchrun was killed"
        raise RuntimeError(message)
    family = {each.pid for each in (torchrun, *torchrun.children(recursive=True))}
    ports = listening_ports(family)
    torchrun.kill()
    killed_s = time.monotonic()
    while family & living_processes().keys() or ports & listening_ports():
        if time.monotonic() > killed_s + PATIENCE_S:
            message = f"still there after {PATIENCE_S:.0f} s: {family & living_processes().keys()}, ports {ports}"
            raise TimeoutError(message)
        time.sleep(0.01)
    return time.monotonic() - killed_s


@contextmanager
def _training(profile: dict[str, str], script: Path, ranks: int) -> Iterator[tuple[RestClient, str]]:
    """Yield a job of the script, cancelled at the end."""
    token = Path(profile["key_file"]).read_text(encoding="ascii").strip()
    spec = {
        "name": "recovery",
        "program": {"script": str(script)},
        "shape": {"nodes": 1, "gpus_per_node": ranks},
        "restart": {"max_restarts": 3},
    }
    with RestClient(profile["api_url"], token) as client:
        job_id = str(client.submit_job(spec)["id"])
        yield client, job_id
        client.cancel_job(job_id, reason="measured")
        _awaited(lambda: [client.job(job_id)["state"]], lambda found: found == ["CANCELLED"])


def _pid_in(line: str) -> int:
    return int(line.split()[3])


def _lines(client: RestClient, job_id: str, size: Size, *, attempt: int) -> list[str]:
    """Return the lines of the last rank of that attempt about its steps."""
    attempts = client.job(job_id)["attempts"]
    if len(attempts) < attempt:
        return []
    pieces = client.logs(job_id, stream=str(size.ranks - 1), attempt_id=attempts[attempt - 1]["id"])
    return [line for line in "".join(each["text"] for each in pieces).splitlines() if line.startswith("step ")]


def _awaited(read: Callable[[], list[str]], is_so: Callable[[list[str]], bool]) -> list[str]:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so(found := read()):
        if time.monotonic() > deadline:
            message = f"not so after {PATIENCE_S:.0f} s: {found[-3:]}"
            raise TimeoutError(message)
        time.sleep(0.1)
    return found
