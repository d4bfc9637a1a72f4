"""A host of real GPUs: cost of its NVML probe, time of a scan, figures of a burn-in and of the check before a start.

Everything runs as the agent and the supervisor run it. A machine without a driver or a CUDA device measures nothing.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agents.burn_in.bench_process import Bench
from agents.burn_in.measuring import Measuring
from agents.host_facts import wall_ms
from agents.probes.interface import GpuCheck, Probe, ProbeError
from agents.probes.nvml import open_nvml_probe
from benchmarks.figures import Basis, Figure, Groups, NothingToMeasureError
from benchmarks.sizes import Sizes
from muster.domain.gpu.metrics import NUM_METRICS
from muster.domain.ids import GpuUuid
from muster.wire.burn_in import Figures
from workers.host.supervisor.order_parts import Preparation
from workers.host.supervisor.quick_check import QuickCheck

CHECKS_PER_MINUTE: Final = 6
"""An agent samples every 10 s by the built-in policy."""
AGENT_BAR_PERCENT: Final = 2.0
"""The bar of a whole idle agent, as in the suite ``host`` for simulated GPUs."""
_BURN_IN_DEADLINE_S: Final = 300.0
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``quick_check_s``: the time that the check before a start computes on a GPU."""

    checks: int
    scans: int
    quick_check_s: float


SIZES: Final = Sizes(full=Size(checks=200, scans=3, quick_check_s=5.0), smallest=Size(5, 1, 0.5))


def measure(size: Size) -> Groups:
    """Measure. Raises NothingToMeasureError if no driver answers or it lists no GPU."""
    try:
        probe = open_nvml_probe()
    except ProbeError as error:
        raise NothingToMeasureError(str(error)) from error
    with closing(probe):
        uuids = [gpu.uuid for gpu in probe.identify().gpus]
        if not uuids:
            raise NothingToMeasureError("the NVIDIA driver lists no GPU")
        yield _probe_figures(probe, len(uuids), size)
        yield _burn_in_figures(probe, uuids)
    yield [_scan_figure(size.scans), _quick_check_figure(uuids, size.quick_check_s)]


def _probe_figures(probe: Probe, num_gpus: int, size: Size) -> list[Figure]:
    inventory_ms, _ = _timed(probe.identify, min(size.checks, 20))
    inspect_ms, _ = _timed(lambda: probe.inspect(wall_ms()), min(size.checks, 50))
    check_ms, cpu_ms = _timed(lambda: probe.check(wall_ms()), size.checks)
    checks = probe.check(wall_ms())
    share = cpu_ms * CHECKS_PER_MINUTE / 60_000 * 100
    return [
        Figure(f"NVML, {num_gpus} GPU: one check", check_ms, "ms", None, peers=_answered(checks), basis=Basis.CLOCK),
        Figure(
            f"NVML, {num_gpus} GPU: CPU of checks by the policy",
            share,
            "%",
            AGENT_BAR_PERCENT,
            peers={"CPU ms a check": cpu_ms},
            basis=Basis.CPU,
        ),
        Figure(f"NVML, {num_gpus} GPU: one inspection", inspect_ms, "ms", None, basis=Basis.CLOCK),
        Figure(f"NVML, {num_gpus} GPU: inventory", inventory_ms, "ms", None, basis=Basis.CLOCK),
    ]


def _timed(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Return the median clock time and the mean CPU time of one call, in milliseconds; all threads count."""
    clock_s = []
    cpu_began_s = time.process_time()
    for _ in range(times):
        began_s = time.perf_counter()
        call()
        clock_s.append(time.perf_counter() - began_s)
    return statistics.median(clock_s) * 1e3, (time.process_time() - cpu_began_s) / times * 1e3


def _answered(checks: Sequence[GpuCheck]) -> dict[str, float]:
    """Return how many of a GPU's metrics NVML answered, does not support and failed to read; means over the GPUs."""
    unsupported = statistics.fmean(len(check.unsupported) for check in checks)
    faults = statistics.fmean(len(check.faults) for check in checks)
    answered = statistics.fmean(sum(value is not None for value in check.values) for check in checks)
    return {"answered": answered, "unsupported": unsupported, "faults": faults, "of": float(NUM_METRICS)}


def _burn_in_figures(probe: Probe, uuids: Sequence[GpuUuid]) -> list[Figure]:
    """Return the figures. Raises RuntimeError if a GPU could not be burnt in: then there is nothing true to record."""
    found: dict[GpuUuid, Figures | str] = {}
    bench = Bench(_job_python())
    Measuring(probe, bench).run(dict.fromkeys(uuids, _BURN_IN_DEADLINE_S), threading.Event(), found.__setitem__)
    return [figure for slot, uuid in enumerate(uuids) for figure in _burn_in_of(slot, found[uuid])]


def _burn_in_of(slot: int, figures: Figures | str) -> list[Figure]:
    if isinstance(figures, str):
        raise RuntimeError(f"the burn-in of GPU {slot} gave no figures: {figures}")  # noqa: TRY004  # no type is wrong
    wrong = sum(each.golden != each.measured for each in figures.partial_sums)
    peers = {"sums": float(len(figures.partial_sums)), "bands": float(len(figures.bands)), "wrong sums": float(wrong)}
    peers["memory GiB"] = figures.memory_bytes / (1 << 30)
    name = f"burn-in of GPU {slot}"
    rates = [
        Figure(f"{name}: {rate}", value, "by its name", None, "higher", basis=Basis.COUNT)
        for rate, value in figures.rates.items()
    ]
    return [Figure(name, figures.took_s, "s", None, peers=peers, basis=Basis.CLOCK), *rates]


def _scan_figure(times: int) -> Figure:
    """Time ``muster agent scan`` as an operator runs it, and count what it found."""
    clock_s = []
    document: dict[str, Any] = {}
    for _ in range(times):
        began_s = time.perf_counter()
        command = [sys.executable, "-m", "muster", "agent", "scan", "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
        clock_s.append(time.perf_counter() - began_s)
        document = json.loads(ended.stdout)
    peers = {
        "GPUs": float(len(document["gpus"])),
        "findings": float(sum(len(gpu["findings"]) for gpu in document["gpus"])),
    }
    return Figure("muster agent scan", statistics.median(clock_s), "s", None, peers=peers, basis=Basis.CLOCK)


def _quick_check_figure(uuids: Sequence[GpuUuid], seconds: float) -> Figure:
    """Time the check that a supervisor runs before a start, process start and import of torch included.

    Raises:
        UnreadyError: it gave no answer.
        WrongResultError: a GPU computed wrong.
    """
    preparation = Preparation(quick_check_s=seconds, python=_job_python())
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="muster-gpu-") as folder:
        check = QuickCheck(Path(folder), preparation, list(uuids))
        while not check.is_over():
            time.sleep(_POLL_S)
    took_s = time.perf_counter() - began_s
    return Figure("check before a start", took_s, "s", None, peers={"computed s": seconds}, basis=Basis.CLOCK)


def _job_python() -> str:
    return os.environ.get("MUSTER_JOB_PYTHON", sys.executable)
