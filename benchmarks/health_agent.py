"""Cost of ``muster agent run`` on a host of 8 GPUs at 10 s: its own process, with a stand-in for NVML and a server.

The stand-in answers at once, so this is the agent's own work; a real driver adds its own calls.
"""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from tests.agents.fake_nvml.probed_host import build
from tests.agents.fake_nvml.state import FakeState, map_state

GPUS = 8
CPU_BAR_MILLICORES = 20.0
MEMORY_BAR_MIB = 100.0
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``watched_s``: two windows of a minute and more, so that they contain slow readings; or
    fewer.
    """

    interval_s: float
    settle_s: float
    watched_s: float
    has_slow_checks: bool


SIZES: Final = Sizes(
    full=Size(interval_s=10.0, settle_s=15.0, watched_s=150.0, has_slow_checks=True),
    smallest=Size(interval_s=1.0, settle_s=0.0, watched_s=2.0, has_slow_checks=False),
)


class NoCompilerError(RuntimeError):
    """The stand-in cannot be built."""


def measure(size: Size) -> Groups:
    """Measure. Raises NoCompilerError, or RuntimeError if it ran too short to contain a slow reading."""
    with tempfile.TemporaryDirectory(prefix="muster-agent-") as name:
        folder = Path(name)
        library = _library(folder)
        state = map_state(folder / "nvml.state", GPUS)
        with _server(size.interval_s) as server, _agent(folder, library, server.url) as process:
            server.wait_for_samples(1)
            time.sleep(size.settle_s)
            millicores, peak_mib = _watch(process, state, size.watched_s)
            reports, sent_bytes, told = server.num_reports, server.num_bytes, dict(server.kinds)
    if size.has_slow_checks and not (told.get("gpu_state") and told.get("gpu_rates")):
        raise RuntimeError(f"the slow looks were not in what was measured: {told}")
    per_minute = 60 / (size.settle_s + size.watched_s)
    sent = {"reports/min": reports * per_minute, **{kind: float(count) for kind, count in told.items()}}
    name, kib_per_minute = f"agent of 8 GPUs at {size.interval_s:.0f} s", sent_bytes * per_minute / 1024
    yield [
        Figure(f"{name}: CPU", millicores, "millicores", CPU_BAR_MILLICORES, basis=Basis.CPU),
        Figure(f"{name}: memory, peak RSS", peak_mib, "MiB", MEMORY_BAR_MIB, basis=Basis.COUNT),
        Figure(f"{name}: sent", kib_per_minute, "KiB/min", None, peers=sent, basis=Basis.COUNT),
    ]


def _library(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler is here: NVML's stand-in cannot be built; install gcc")
    build(compiler, folder / "libnvidia-ml.so.1", [])
    return folder


def _watch(process: psutil.Process, state: FakeState, watched_s: float) -> tuple[float, float]:
    """Return millicores and the peak in MiB, with its children's (journalctl).

    The host is busy: energy, a link's errors and replays grow meanwhile.
    """
    cpu, began_s = _cpu_s(process), time.monotonic()
    held = [_rss(process)]
    while time.monotonic() - began_s < watched_s:
        time.sleep(1)
        held.append(_rss(process))
        for gpu in state.gpus[:GPUS]:
            gpu.energy_mj += 500_000
            gpu.pcie_replays += 1
            gpu.ill_link_errors += 1
    spent_s = _cpu_s(process) - cpu
    return 1_000 * spent_s / (time.monotonic() - began_s), max(held) / (1 << 20)


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of the process, of ended children, and of living ones."""
    return float(sum(process.cpu_times()[:4])) + sum(
        _of_child(child, lambda one: sum(one.cpu_times()[:4])) for child in process.children(recursive=True)
    )


def _rss(process: psutil.Process) -> int:
    children = process.children(recursive=True)
    return int(
        process.memory_info().rss + sum(_of_child(child, lambda one: one.memory_info().rss) for child in children)
    )


def _of_child(child: psutil.Process, read: Callable[[psutil.Process], float]) -> float:
    """Return a child's value; one that ends meanwhile is counted by its parent."""
    try:
        return read(child)
    except psutil.NoSuchProcess:
        return 0.0


@contextmanager
def _agent(folder: Path, library: Path, url: str) -> Iterator[psutil.Process]:
    key_file = folder / "node.key"
    key_file.write_text("mst_bench\n", encoding="ascii")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MUSTER_")},
        "MUSTER_API_URL": url,
        "MUSTER_API_KEY_FILE": str(key_file),
        "MUSTER_STATE_DIR": str(folder / "state"),
        "LD_LIBRARY_PATH": str(library),
        "FAKE_NVML_STATE": str(folder / "nvml.state"),
    }
    command = [sys.executable, "-m", "muster", "agent", "run"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)  # noqa: S603  # our own module
    try:
        yield psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class _Server:
    """Server that takes every report, and asks for samples every ``interval_s``."""

    def __init__(self, url: str, interval_s: float) -> None:
        self.url = url
        self.interval_s = interval_s
        self.num_reports = 0
        self.num_bytes = 0
        self.kinds: Counter[str] = Counter()

    def take(self, path: str, body: bytes, encoding: str) -> tuple[int, dict[str, Any]]:
        if path != "/v1/telemetry":
            return 404, {}
        report = json.loads(gzip.decompress(body) if encoding == "gzip" else body)
        self.num_reports += 1
        self.num_bytes += len(body)
        self.kinds.update(event["kind"] for event in report.get("events", ()))
        return 200, {"boot_id": report["boot_id"], "seq": report["seq"], "interval_s": self.interval_s}

    def wait_for_samples(self, count: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.num_reports < count:
            if time.monotonic() > deadline:
                raise TimeoutError("the agent sent no report")
            time.sleep(0.05)


@contextmanager
def _server(interval_s: float) -> Iterator[_Server]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = made.take(self.path, body, self.headers.get("Content-Encoding", ""))
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = _Server(f"http://127.0.0.1:{server.server_address[1]}", interval_s)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
