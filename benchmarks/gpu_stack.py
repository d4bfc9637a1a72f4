"""The whole stack on this machine's own GPUs: burn-in, a job's first step on CUDA, its recovery, its clean end.

``muster up --real`` runs it, by the tour's timers. Last, a program in a group that is barred from every GPU's device
file counts the CUDA devices that it can use, by the real driver.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from agents.probes.interface import ProbeError
from agents.probes.nvml import open_nvml_probe
from benchmarks.figures import Basis, Figure, Groups, NothingToMeasureError
from benchmarks.launches import wait_for_profile, wait_for_proved_gpus
from benchmarks.quick_policy import write_policy
from benchmarks.sizes import Sizes
from muster.client.rest import RestClient
from muster.ports import free_port
from workers.host.supervisor.cgroup.device_files import barred_files
from workers.host.supervisor.cgroup.devices import bar
from workers.host.supervisor.cgroup.group import make_group
from workers.host.supervisor.cgroup.place import find_place
from workers.host.supervisor.order_parts import HostLimits

PATIENCE_S: Final = 180.0
NO_PAUSE: Final = {"dispatch": {"retry_backoff_s": 0.001, "retry_backoff_max_s": 0.001}}
"""Policy without the pause before a next attempt, which is no work."""
PROGRAM: Final = """
import os, time, torch
from muster import train
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
model = torch.nn.Linear(4096, 4096).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = train.start(model, optimizer, checkpoint_every=5)
for step in run.steps(100_000):
    optimizer.zero_grad()
    loss = run.model(torch.ones(256, 4096, device=device)).square().mean()
    torch.autograd.backward(loss)
    optimizer.step()
    run.report(loss=loss)
    torch.cuda.synchronize()
    print(f"step {step} {time.time()} {os.getpid()}\\n", end="", flush=True)
    time.sleep(0.05)
"""
COUNTS: Final = "input(); import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
"""Program that waits for a line, since it is placed into its group first, and prints its number of CUDA devices."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``steps``: that a rank has done when it is killed; ``times`` it is."""

    times: int
    steps: int


SIZES: Final = Sizes(full=Size(times=3, steps=20), smallest=Size(times=1, steps=1))


def measure(size: Size) -> Groups:
    """Measure. Raises NothingToMeasureError if no driver answers or it lists no GPU."""
    try:
        with closing(open_nvml_probe()) as probe:
            num_gpus = len(probe.identify().gpus)
    except ProbeError as error:
        raise NothingToMeasureError(str(error)) from error
    if not num_gpus:
        raise NothingToMeasureError("the NVIDIA driver lists no GPU")
    with tempfile.TemporaryDirectory(prefix="muster-gpu-stack-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        yield from _stack_figures(folder, num_gpus, size)
    yield [_barred_figure(num_gpus)]


def _stack_figures(folder: Path, num_gpus: int, size: Size) -> Groups:
    script = folder / "train.py"
    script.write_text(PROGRAM, encoding="utf-8")
    began_s = time.monotonic()
    with _stack(folder) as profile:
        up_s = time.monotonic() - began_s
        wait_for_proved_gpus(profile)
        peers = {"the control plane's start s": up_s, "GPUs": float(num_gpus)}
        yield [_clock("stack on its own GPUs: start → every GPU HEALTHY", time.monotonic() - began_s, peers)]
        bare_s = _bare_s(script, num_gpus)
        runs = [_run_of_a_job(profile, script, num_gpus, size.steps) for _ in range(size.times)]
    first_s, recovered_s, clean_s = (statistics.median(each) for each in zip(*runs, strict=True))
    bare = {"bare torchrun s": bare_s}
    yield [
        _clock("submit → first step on CUDA, p50", first_s, bare),
        _clock("rank's death → next step on CUDA, no pause, p50", recovered_s, bare),
        _clock("cancel → GPUs proved clean, p50", clean_s, {}),
    ]


def _clock(name: str, value_s: float, peers: dict[str, float]) -> Figure:
    return Figure(name, value_s, "s", None, peers=peers, basis=Basis.CLOCK)


@contextmanager
def _stack(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the profile of a stack with this machine's own GPUs."""
    command = [sys.executable, "-m", "muster", "up", "--real", "--no-tour", "--state-dir", str(folder / "state")]
    command += ["--port", str(free_port()), "--policy", str(write_policy(folder, is_quick=False, changes=NO_PAUSE))]
    stack = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603  # our own module
    try:
        yield wait_for_profile(folder / "state" / "cli.json")
    finally:
        stack.send_signal(signal.SIGINT)
        stack.wait(60)


def _bare_s(script: Path, num_gpus: int) -> float:
    """Return the time from torchrun's start to its first step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_gpus), "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    began_s = time.time()
    with subprocess.Popen(  # noqa: S603  # fixed arguments
        [*command, str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        first = next(line for line in process.stdout or () if line.startswith("step "))
        process.send_signal(signal.SIGTERM)
    return float(first.split()[2]) - began_s


def _run_of_a_job(profile: dict[str, str], script: Path, num_gpus: int, steps: int) -> tuple[float, float, float]:
    """Return the seconds of one job from submission to step, from a rank's death to step, from cancel to clean GPUs.

    Raises:
        RuntimeError: its programs were not barred from other device files, or its GPUs were not proved clean.
    """
    with RestClient(profile["api_url"], _key(profile["key_file"])) as client:
        began_s = time.time()
        job_id = str(client.submit_job(_specification(script, num_gpus))["id"])
        steps_of = partial(_steps, client, job_id, num_gpus - 1)
        first = _awaited(partial(steps_of, 0), bool)[0]
        last = _awaited(partial(steps_of, 0), lambda found: len(found) >= steps)[-1]
        killed_s = time.time()
        os.kill(int(last[3]), signal.SIGKILL)
        again = _awaited(partial(steps_of, 1), bool)[0]
        cancelled_s = time.time()
        client.cancel_job(job_id, reason="measured")
        hosts = _awaited(lambda: client.job(job_id)["attempts"][1]["hosts"], lambda found: all(map(_is_clean, found)))
        clean_s = time.time()
    unproved = [host for host in hosts if host["gpu_processes_unknown"] or not _is_barred(host)]
    if unproved:
        raise RuntimeError(f"not isolated, or not proved clean: {unproved}")
    return float(first[2]) - began_s, float(again[2]) - killed_s, clean_s - cancelled_s


def _is_clean(host: Mapping[str, Any]) -> bool:
    return host["clean_at"] is not None


def _is_barred(host: Mapping[str, Any]) -> bool:
    return (host["exit_record"] or {}).get("device_files") == "cgroup"


def _key(path: str) -> str:
    return Path(path).read_text(encoding="ascii").strip()


def _specification(script: Path, num_gpus: int) -> Mapping[str, Any]:
    return {
        "name": "gpu-stack",
        "program": {"script": str(script)},
        "shape": {"nodes": 1, "gpus_per_node": num_gpus},
        "restart": {"max_restarts": 3},
    }


def _steps(client: RestClient, job_id: str, rank: int, attempt: int) -> list[list[str]]:
    """Return the words of each line about a step of that rank in that attempt of the job."""
    attempts = client.job(job_id)["attempts"]
    if len(attempts) <= attempt:
        return []
    pieces = client.logs(job_id, stream=str(rank), attempt_id=attempts[attempt]["id"])
    lines = "".join(each["text"] for each in pieces).splitlines()
    return [line.split() for line in lines if line.startswith("step ")]


def _awaited(read: Callable[[], list[Any]], is_so: Callable[[list[Any]], bool]) -> list[Any]:
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so(found := read()):
        if time.monotonic() > deadline_s:
            message = f"not so after {PATIENCE_S:.0f} s: {found[-3:]}"
            raise TimeoutError(message)
        time.sleep(0.1)
    return found


def _barred_figure(num_gpus: int) -> Figure:
    """Count the CUDA devices of a program that is barred from all GPUs; and of one that is barred from none.

    Raises:
        OSError: this kernel bars no group.
    """
    group = make_group(find_place(), f"muster-gpu-stack-{os.getpid()}", HostLimits(), bars_devices=True)
    try:
        seen = _cuda_devices(group.place)
        bar(group, barred_files([], Path("/proc"), Path("/sys/bus/pci/devices")))
        barred = _cuda_devices(group.place)
    finally:
        _awaited(lambda: [group.remove()], all)
    peers = {"not barred": float(seen), "GPUs": float(num_gpus)}
    name = f"CUDA devices of a program that the kernel's groups ({group.kind}) bar from all"
    return Figure(name, float(barred), "devices", 0.0, peers=peers, basis=Basis.COUNT)


def _cuda_devices(place: Callable[[int], object]) -> int:
    command = [sys.executable, "-c", COUNTS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603  # our own
        place(program.pid)
        output, _ = program.communicate("go\n", timeout=PATIENCE_S)
    return int(json.loads(output))
