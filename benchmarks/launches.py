"""The stack's start, and from a submission by REST to the first rank, compared with bare torchrun in the same run."""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.quick_policy import write_policy
from benchmarks.sizes import Sizes
from muster.cli.host.up import GPUS, HOSTS
from muster.client.rest import RestClient
from muster.ports import free_port

REST_S: Final = 10.0
"""Pause for a host: a warm torchrun is made again 5 s after the last start, within 2 s or so."""
SCRIPT = "import time\nprint('first', time.time(), flush=True)\n"
START_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``rest_s``: with less, a host may lack its next torchrun. ``is_quick``: GPUs are proved at
    once.
    """

    hosts: str
    gpus: int
    jobs: int
    rest_s: float
    is_quick: bool


SIZES: Final = Sizes(
    full=Size(HOSTS, GPUS, jobs=5, rest_s=REST_S, is_quick=False),
    smallest=Size("h100", 1, jobs=1, rest_s=0.0, is_quick=True),
)


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-launch-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        script = folder / "first.py"
        script.write_text(SCRIPT, encoding="utf-8")
        state = folder / "state"
        started = time.monotonic()
        command = [sys.executable, "-m", "muster", "up", "--no-tour", "--state-dir", str(state)]
        command += ["--hosts", size.hosts, "--gpus", str(size.gpus), "--port", str(free_port())]
        command += ["--policy", str(write_policy(folder, is_quick=size.is_quick))]
        stack = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  # our own module
        try:
            profile = wait_for_profile(state / "cli.json")
            start_s = time.monotonic() - started
            # The smallest size keeps no figure, so its bare start may run while the GPUs are still on probation.
            if not size.is_quick:
                wait_for_proved_gpus(profile, size.rest_s)
            bare_s = statistics.median(_bare(script) for _ in range(size.jobs))
            wait_for_proved_gpus(profile)
            cold_s = statistics.median(_ours(profile, script, {"TORCH_STARTS": "cold"}) for _ in range(size.jobs))
            ours_s = statistics.median(_ours_on_a_rested_host(profile, script, size.rest_s) for _ in range(size.jobs))
        finally:
            stack.send_signal(signal.SIGINT)
            stack.wait(60)
    peers = {"bare torchrun s": bare_s, "without a warm torchrun s": cold_s}
    over_s, ours = cold_s - bare_s, {"ours s": cold_s}
    yield [
        Figure("stack: start after set-up", start_s, "s", 10.0, basis=Basis.BUSY),
        Figure("submit → first rank runs, p50", ours_s, "s", 1.5, peers=peers, basis=Basis.CLOCK),
        Figure("submit → first line over bare torchrun, p50", over_s, "s", 1.5, peers=ours, basis=Basis.CLOCK),
    ]


def wait_for_profile(path: Path) -> dict[str, str]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            message = "the stack did not come up"
            raise TimeoutError(message)
        time.sleep(0.02)
    profile: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return profile


def wait_for_proved_gpus(profile: dict[str, str], rest_s: float = 0.0) -> None:
    """Wait until the GPUs have passed their probation, then ``rest_s``, in which hosts make warm torchruns ready."""
    deadline = time.monotonic() + START_TIMEOUT_S
    with RestClient(
        profile["api_url"], Path(profile["operator_key_file"]).read_text(encoding="ascii").strip()
    ) as client:
        while (found := client.gpus()) == [] or any(gpu["standing"] != "HEALTHY" for gpu in found):
            if time.monotonic() > deadline:
                message = "the GPUs did not become HEALTHY"
                raise TimeoutError(message)
            time.sleep(0.2)
    time.sleep(rest_s)


def _bare(script: Path) -> float:
    started = time.time()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--standalone", str(script)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)  # noqa: S603  # fixed arguments
    return _first(answer.stdout) - started


def _ours_on_a_rested_host(profile: dict[str, str], script: Path, rest_s: float) -> float:
    """Measure on a host that has its next torchrun ready, as every host that did not start a program seconds ago."""
    time.sleep(rest_s)
    return _ours(profile, script, {})


def _ours(profile: dict[str, str], script: Path, env: dict[str, str]) -> float:
    token = Path(profile["key_file"]).read_text(encoding="ascii").strip()
    with RestClient(profile["api_url"], token) as client:
        started = time.time()
        job = client.submit_job({"name": "first", "program": {"script": str(script), "env": env}})
        text = "".join(piece["text"] for piece in client.follow_logs(job["id"], stream="0"))
    return _first(text) - started


def _first(text: str) -> float:
    line = next(line for line in text.splitlines() if line.startswith("first "))
    return float(line.split()[1])
