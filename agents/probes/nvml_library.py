"""NVIDIA's library: opened with clear errors, its error codes sorted into lost, unsupported and failed.

The Python module (nvidia-ml-py) is part of the ``agent`` extra and is loaded only here.
"""

import importlib
from typing import Any, Final

from agents.probes.interface import ProbeError

SUCCESS: Final = 0
NOT_SUPPORTED: Final = 3
TIMEOUT: Final = 10
FUNCTION_NOT_FOUND: Final = 13
INVALID_ARGUMENT: Final = 2
CORRUPTED_INFOROM: Final = 14
GPU_IS_LOST: Final = 15
UNKNOWN_VERSION: Final = 25
"""A struct's version that this driver is too old for."""

UNSUPPORTED_CODES: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, 22, UNKNOWN_VERSION, 26})
"""Codes of missing support.

Among them: vGPU without ECC (22), a struct version that this driver does not know (25), deprecated away (26).
"""

_ADVICE_OF_ERROR: Final = {
    1: ("NVML was shut down or never started", "Start the agent again."),
    4: ("this user may not call the NVIDIA driver", "Give it access to /dev/nvidiactl and /dev/nvidia*."),
    9: ("the NVIDIA driver is not loaded", "Load it (`modprobe nvidia`), and read the kernel log (`dmesg`)."),
    12: ("there is no NVIDIA driver on this host (libnvidia-ml.so.1 was not found)", "Install the NVIDIA driver."),
    18: ("the NVIDIA library and kernel module are of different versions", "Reboot after the driver's upgrade."),
}
"""Codes that are about the host as a whole: the fault, and what to do."""


def load() -> Any:
    """Return the module ``pynvml``. It has no types: Any stands at this edge."""
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        words = "the Python package nvidia-ml-py is not installed"
        raise ProbeError(words, "Install Muster with its `agent` extra.") from error


def start(nvml: Any) -> None:
    """Load the library and initialise it. Raises ProbeError with text and advice."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise host_fault(error.value) or _unknown(error) from error


def host_fault(code: int) -> ProbeError | None:
    """Return the error of the host as a whole that ``code`` stands for; None where it is about one GPU or call."""
    advice = _ADVICE_OF_ERROR.get(code)
    return None if advice is None else ProbeError(*advice)


def _unknown(error: Any) -> ProbeError:
    return ProbeError(f"NVML did not start: {error} (code {error.value})", "Read the kernel log (`dmesg`).")


def text_of(error: Any) -> str:
    """Return an NVML error as the driver's message, with its code."""
    return f"{error} (NVML {error.value})"
