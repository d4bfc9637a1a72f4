"""Time from the control plane's wake-up to the host's socket, over a real broker and a real Celery worker."""

import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from local.broker import BrokerServer
from workers.host.wake_socket import Doorbell
from workers.wakeup.command import BROKER_VARIABLE, ListenerArguments
from workers.wakeup.sender import Ringer

NODE: Final = "node_bench"
STARTS_WITHIN_S: Final = 60.0
QUIET_S: Final = 0.5
RING_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    rings: int


SIZES: Final = Sizes(full=Size(rings=200), smallest=Size(rings=5))


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if the listener ended or received nothing: then there is nothing to measure."""
    with tempfile.TemporaryDirectory(prefix="muster-bell-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        broker = BrokerServer(folder / "broker")
        broker.start()
        doorbell = Doorbell(folder / "bell.sock")
        listener = _listener(doorbell, broker.url)
        try:
            times_ms = _ring(broker.url, doorbell, listener, size.rings)
        finally:
            listener.terminate()
            listener.wait(10)
            doorbell.close()
            broker.stop()
    ordered = sorted(times_ms)
    peers = {"p95 ms": ordered[int(len(ordered) * 0.95)]}
    name = "ring: send → task start, p50"
    yield [Figure(name, statistics.median(ordered), "ms", 5.0, peers=peers, basis=Basis.BUSY)]


def _listener(doorbell: Doorbell, broker_url: str) -> "subprocess.Popen[bytes]":
    command = ListenerArguments(NODE, doorbell.path, os.getpid()).command()
    return subprocess.Popen(command, env={**os.environ, BROKER_VARIABLE: broker_url})  # noqa: S603  # our own module


def _ring(broker_url: str, doorbell: Doorbell, listener: "subprocess.Popen[bytes]", rings: int) -> list[float]:
    ringer = Ringer(broker_url)
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    while not doorbell.wait(1.0):
        if listener.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the wake-up listener does not answer: exit code {listener.returncode}")
        ringer.ring(NODE, "att_warm")
    while doorbell.wait(QUIET_S):
        pass
    times_ms = []
    for number in range(rings):
        started = time.perf_counter()
        ringer.ring(NODE, f"att_{number}")
        if not doorbell.wait(RING_TIMEOUT_S):
            raise RuntimeError(f"wake-up {number + 1} did not arrive within {RING_TIMEOUT_S:.0f} s")
        times_ms.append((time.perf_counter() - started) * 1000)
    ringer.close()
    return times_ms
