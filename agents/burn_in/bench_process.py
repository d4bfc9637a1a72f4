"""The computing process, seen from the agent: it may crash, hang or print nothing, and the agent continues.

It runs in a session of its own and is killed as a whole at its deadline, or when the agent ends.
"""

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from agents.probes.interface import ComputeDevice
from muster.domain.ids import GpuUuid
from muster.wire.operations import SuspectOperation

LINE_BYTES_MAX: Final = 1 << 20
ERROR_BYTES: Final = 4096
POLL_S: Final = 0.25
Operations = Mapping[GpuUuid, SuspectOperation]
NO_OPERATIONS: Final[Operations] = {}
_ROOT: Final = str(Path(__file__).resolve().parents[2])
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); import muster.bench; from agents.burn_in.bench import entry;"
    " del sys.path[0]; entry.main()"
)
"""Our folder is on its path only while our own packages are found: torch and its dependencies are the interpreter's."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's line; ``fault`` where there are no figures."""

    gpu: str
    library: str = ""
    partial_sums: tuple[tuple[str, int, int], ...] = ()
    bands: dict[str, str] = {}
    rates: dict[str, float] = {}
    memory_bytes: int = 0
    took_s: float = 0.0
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Bench:
    """The computing process and its runs. ``python``: an interpreter with torch."""

    python: str = sys.executable

    def run(
        self,
        gpus: Mapping[GpuUuid, ComputeDevice],
        deadline_s: float,
        stop: threading.Event,
        take: Callable[[Measured], None],
        operations: Operations = NO_OPERATIONS,
    ) -> None:
        """Compute on GPUs of one kind. ``operations``: a suspect one to repeat, by GPU.

        ``take`` is called for each as soon as it is done, and for each failed one with the cause. Real GPUs are
        computed on one at a time: the process sees one alone.
        """
        left = list(gpus)
        try:
            process = self._start(gpus, deadline_s, operations)
        except OSError as error:
            fault = f"{self.python} cannot be started: {error}"
        else:
            with process:
                fault = _read_lines(process, deadline_s, stop, lambda found: _take_once(found, left, take))
        for uuid in left:
            take(Measured(gpu=uuid, fault=fault))

    def _start(
        self, gpus: Mapping[GpuUuid, ComputeDevice], deadline_s: float, operations: Operations
    ) -> "subprocess.Popen[bytes]":
        kinds = {device.kind for device in gpus.values()}
        if len(kinds) != 1 or (kinds == {"cuda"} and len(gpus) != 1):
            raise ValueError("one process computes on simulated GPUs, or on one real GPU")
        request = {
            "device": kinds.pop(),
            "deadline_s": deadline_s,
            "gpus": [
                {"uuid": uuid, "is_wrong": device.is_wrong, "operation": operations.get(uuid)}
                for uuid, device in gpus.items()
            ],
        }
        process = subprocess.Popen(  # noqa: S603  # our own program, by an interpreter that the host's owner names
            [self.python, "-I", "-c", _START, _ROOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(list(gpus)),
            start_new_session=True,
        )
        stdin = process.stdin
        if stdin is not None:
            try:
                with stdin:
                    stdin.write(msgspec.json.encode(request))
            except BrokenPipeError:
                pass  # it ended at once: its exit states the cause
        return process


def _environment(uuids: Sequence[GpuUuid]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "CUDA_VISIBLE"))}
    return {**kept, "CUDA_VISIBLE_DEVICES": uuids[0] if len(uuids) == 1 else ""}


def _take_once(found: Measured, left: list[GpuUuid], take: Callable[[Measured], None]) -> None:
    if found.gpu in left:
        left.remove(GpuUuid(found.gpu))
        take(found)


def _read_lines(
    process: "subprocess.Popen[bytes]", deadline_s: float, stop: threading.Event, take: Callable[[Measured], None]
) -> str:
    """Pass on lines until the process ends, and return why GPUs without a line have no figures."""
    until = time.monotonic() + deadline_s
    buffer, said = bytearray(), bytearray()
    try:
        with selectors.DefaultSelector() as selector:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                if stop.is_set():
                    return "the agent was asked to end"
                if time.monotonic() >= until:
                    return f"it did not end within {deadline_s:g} s"
                for key, _ in selector.select(POLL_S):
                    is_lines = key.fileobj is process.stdout
                    if not _feed(key.fd, buffer if is_lines else said):
                        selector.unregister(key.fileobj)
                del said[:-ERROR_BYTES]
                _cut_lines(buffer, take)
                if len(buffer) > LINE_BYTES_MAX:
                    return "its output is longer than any burn-in's"
    except msgspec.MsgspecError as error:
        return f"its line cannot be read: {error}"
    finally:
        _end(process)
    return _end_in_words(process.returncode, bytes(said))


def _feed(descriptor: int, into: bytearray) -> bool:
    piece = os.read(descriptor, 1 << 16)
    into += piece
    return bool(piece)


def _cut_lines(buffer: bytearray, take: Callable[[Measured], None]) -> None:
    while (end := buffer.find(b"\n")) >= 0:
        line = bytes(buffer[:end])
        del buffer[: end + 1]
        take(msgspec.json.decode(line, type=Measured))


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_in_words(code: int, reported: bytes) -> str:
    last = reported.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
    ended = f"its process ended by signal {-code}" if code < 0 else f"its process ended with exit code {code}"
    return f"{ended}: {last}" if last else ended
