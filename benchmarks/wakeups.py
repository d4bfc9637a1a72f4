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
from workers.host.wake_socket import WakeupSocket
from workers.wakeup.command import BROKER_VARIABLE, ListenerArguments
from workers.wakeup.sender import WakeupSender

NODE: Final = "node_bench"
STARTS_WITHIN_S: Final = 60.0
QUIET_S: Final = 0.5
WAKEUP_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Size:
    wakeups: int


SIZES: Final = Sizes(full=Size(wakeups=200), smallest=Size(wakeups=5))


def measure(size: Size) -> Groups:
    """Measure. Raises RuntimeError if the listener ended or received nothing: then there is nothing to measure."""
    with tempfile.TemporaryDirectory(prefix="muster-wakeups-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        broker = BrokerServer(folder / "broker")
        broker.start()
        wakeup_socket = WakeupSocket(folder / "wakeup.sock")
        listener = _listener(wakeup_socket, broker.url)
        try:
            times_ms = _wake(broker.url, wakeup_socket, listener, size.wakeups)
        finally:
            listener.terminate()
            listener.wait(10)
            wakeup_socket.close()
            broker.stop()
    ordered = sorted(times_ms)
    peers = {"p95 ms": ordered[int(len(ordered) * 0.95)]}
    name = "wake-up: send → task start, p50"
    yield [Figure(name, statistics.median(ordered), "ms", 5.0, peers=peers, basis=Basis.BUSY)]


def _listener(wakeup_socket: WakeupSocket, broker_url: str) -> "subprocess.Popen[bytes]":
    command = ListenerArguments(NODE, wakeup_socket.path, os.getpid()).command()
    return subprocess.Popen(command, env={**os.environ, BROKER_VARIABLE: broker_url})  # noqa: S603  # our own module


def _wake(
    broker_url: str, wakeup_socket: WakeupSocket, listener: "subprocess.Popen[bytes]", wakeups: int
) -> list[float]:
    sender = WakeupSender(broker_url)
    deadline_s = time.monotonic() + STARTS_WITHIN_S
    while not wakeup_socket.wait(1.0):
        if listener.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the wake-up listener does not answer: exit code {listener.returncode}")
        sender.wake(NODE, "att_warm")
    while wakeup_socket.wait(QUIET_S):
        pass
    times_ms = []
    for number in range(wakeups):
        started = time.perf_counter()
        sender.wake(NODE, f"att_{number}")
        if not wakeup_socket.wait(WAKEUP_TIMEOUT_S):
            raise RuntimeError(f"wake-up {number + 1} did not arrive within {WAKEUP_TIMEOUT_S:.0f} s")
        times_ms.append((time.perf_counter() - started) * 1000)
    sender.close()
    return times_ms
