"""From the control plane's ring to the host's doorbell, over a real broker and a real Celery worker."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure
from muster.embedded.broker import BrokerServer
from workers.bell.ringer import Ringer
from workers.host.doorbell import Doorbell

RINGS = 200
NODE = "node_bench"


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="muster-bell-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        broker = BrokerServer(folder / "broker")
        broker.start()
        doorbell = Doorbell(folder / "bell.sock")
        command = [sys.executable, "-m", "workers.bell.listener", NODE, str(doorbell.path)]
        listener = subprocess.Popen(command, env={**os.environ, "MUSTER_BROKER_URL": broker.url})  # noqa: S603  # our own module
        try:
            times_ms = _ring(broker.url, doorbell)
        finally:
            listener.terminate()
            listener.wait(10)
            doorbell.close()
            broker.stop()
    ordered = sorted(times_ms)
    peers = {"p95 ms": ordered[int(len(ordered) * 0.95)]}
    return [Figure("ring: send → task start, p50", statistics.median(ordered), "ms", 5.0, peers=peers)]


def _ring(broker_url: str, doorbell: Doorbell) -> list[float]:
    ringer = Ringer(broker_url)
    while not doorbell.wait(1.0):
        ringer.ring(NODE, "att_warm")
    while doorbell.wait(0.5):
        pass
    times_ms = []
    for number in range(RINGS):
        started = time.perf_counter()
        ringer.ring(NODE, f"att_{number}")
        if doorbell.wait(5.0):
            times_ms.append((time.perf_counter() - started) * 1000)
    ringer.close()
    return times_ms
