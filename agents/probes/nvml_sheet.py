"""A sheet that one GPU's answers are written on: value, unsupported, or failed, by name; a lost GPU ends it."""

from collections.abc import Callable, Sequence
from typing import Any

from agents.probes.nvml_library import GPU_IS_LOST, UNSUPPORTED_CODES, text_of


class GpuLostError(Exception):
    """The driver reports that this GPU is lost: each further call would give the same error."""


class Sheet:
    """The sheet. ``nvml`` is the module pynvml."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.values: dict[str, Any] = {}
        self.unsupported: set[str] = set()
        self.faults: dict[str, str] = {}

    def take(self, names: Sequence[str], read: Callable[[], Sequence[Any]]) -> None:
        """Write down the results of ``read``, one value a name. Raises GpuLostError."""
        try:
            answers = read()
        except self.nvml.NVMLError as error:
            self._put_error(names, error)
        except ValueError as error:  # such as a serial that is no UTF-8
            self.faults.update(dict.fromkeys(names, str(error)))
        else:
            self.values.update(zip(names, answers, strict=True))

    def take_one(self, name: str, read: Callable[[], Any]) -> None:
        self.take((name,), lambda: (read(),))

    def _put_error(self, names: Sequence[str], error: Any) -> None:
        if error.value == GPU_IS_LOST:
            raise GpuLostError(text_of(error)) from None
        if error.value in UNSUPPORTED_CODES:
            self.unsupported.update(names)
        else:
            self.faults.update(dict.fromkeys(names, text_of(error)))
