"""Check by NVML whether GPUs are present and free: ``python -I -S gpu_check.py UUID...`` prints a fault, or nothing.

After ``--who-computes`` it checks once and prints as JSON the processes that compute on busy GPUs, and after
``--minors`` the number of each GPU's device file.
It is a program of its own, since a call into a driver that hangs must not hang the supervisor. Functions, structures:
docs.nvidia.com/deploy/nvml-api, "Device Queries" (nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t,
nvmlDeviceGetMinorNumber).
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIBRARY = "libnvidia-ml.so.1"
NO_LIBRARY = 3
COMPUTING_PROCESSES = "--who-computes"
MINORS = "--minors"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
_MOST_PROCESSES = 64
_CHECKS, _PAUSE_S = 5, 1.0
"""Number of checks and pause between them: the driver may name a process for a moment after its end."""


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_memory_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(Exception):
    """The driver refuses; the message is the driver's."""


class Nvml:
    """Calls of NVML that this program needs. ``library``: as ``ctypes`` loads it."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p
        self._require("the driver cannot be asked", library.nvmlInit_v2())

    def processes(self, uuid: str) -> list[int]:
        """Return the pids that compute on one GPU; some of them if there are many. Raises NvmlError: it is
        not there.
        """
        device = self._device(uuid)
        count = ctypes.c_uint(_MOST_PROCESSES)
        processes = (_Process * _MOST_PROCESSES)()
        found = self._library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes)
        if found != _INSUFFICIENT_SIZE:
            self._require(f"{uuid} does not list the processes on it", found)
        return [int(processes[index].pid) for index in range(min(count.value, _MOST_PROCESSES))]

    def minor(self, uuid: str) -> int:
        """Return N of its ``/dev/nvidiaN``. Raises NvmlError: it is not there, or has none."""
        minor = ctypes.c_uint()
        found = self._library.nvmlDeviceGetMinorNumber(self._device(uuid), ctypes.byref(minor))
        self._require(f"{uuid} does not say which device file is its", found)
        return int(minor.value)

    def close(self) -> None:
        self._library.nvmlShutdown()

    def _device(self, uuid: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        found = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(device))
        self._require(f"{uuid} is not there", found)
        return device

    def _require(self, what: str, code: int) -> None:
        if code != _SUCCESS:
            words = self._library.nvmlErrorString(code)
            raise NvmlError(f"{what}: {words.decode(errors='replace') if words else code}")


def computing_processes(nvml: Nvml, uuids: Sequence[str]) -> dict[str, list[int]]:
    """Return GPU → the pids that compute on it, for busy GPUs. Raises NvmlError: one is not there."""
    return {uuid: pids for uuid in uuids if (pids := nvml.processes(uuid))}


def minors(nvml: Nvml, uuids: Sequence[str]) -> dict[str, int]:
    """Return GPU → N of its ``/dev/nvidiaN``. Raises NvmlError: one is not there."""
    return {uuid: nvml.minor(uuid) for uuid in uuids}


def what_is_wrong(nvml: Nvml, uuids: Sequence[str], *, checks: int = _CHECKS, pause_s: float = _PAUSE_S) -> str | None:
    """Return the first GPU that is missing or not free, as text; None if all are there and nothing computes on them."""
    busy: tuple[str, list[int]] | None = None
    for look in range(checks):
        if look:
            time.sleep(pause_s)
        try:
            running = computing_processes(nvml, uuids)
        except NvmlError as fault:
            return str(fault)
        busy = next(iter(running.items()), None)
        if busy is None:
            return None
    if busy is None:
        return None
    uuid, pids = busy
    return f"{uuid} is not free: process {', '.join(map(str, sorted(pids)))} computes on it"


def main(arguments: Sequence[str]) -> int:
    question = {COMPUTING_PROCESSES: computing_processes, MINORS: minors}.get(arguments[0] if arguments else "")
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return NO_LIBRARY
    try:
        nvml = Nvml(library)
    except NvmlError as fault:
        print(fault)  # noqa: T201  # this program's result
        return 1
    try:
        return _report_what_is_wrong(nvml, arguments) if question is None else _report(question, nvml, arguments[1:])
    finally:
        nvml.close()


def _report_what_is_wrong(nvml: Nvml, uuids: Sequence[str]) -> int:
    wrong = what_is_wrong(nvml, uuids)
    if wrong is None:
        return 0
    print(wrong)  # noqa: T201  # as above
    return 1


def _report(question: Callable[[Nvml, Sequence[str]], object], nvml: Nvml, uuids: Sequence[str]) -> int:
    try:
        answer = question(nvml, uuids)
    except NvmlError as fault:
        print(fault)  # noqa: T201  # as above
        return 1
    print(json.dumps(answer))  # noqa: T201  # as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
