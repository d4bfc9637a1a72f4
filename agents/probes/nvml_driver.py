"""The driver behind deadlines: calls about the host, and calls about each GPU in parallel."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import structlog

from agents.probes import nvml_library
from agents.probes.deadline import Callers, NoAnswerError
from agents.probes.interface import ProbeError

HOST_DEADLINE_S: Final = 0.5
"""Longest time that the driver may take to count its GPUs or to name its version."""
START_DEADLINE_S: Final = 60.0
"""Longest time of the driver's start: without persistence mode it wakes each GPU."""

Result = TypeVar("Result")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver. ``nvml`` is the module pynvml, ``deadline_s`` the time of one GPU for one round of calls."""

    nvml: Any
    deadline_s: float
    _callers: Callers = field(default_factory=Callers)

    @property
    def is_idle(self) -> bool:
        """Return whether no call hangs in the driver."""
        return self._callers.is_idle

    def start(self) -> None:
        """Start NVML. Raises ProbeError."""
        self.ask(lambda: nvml_library.start(self.nvml), timeout_s=START_DEADLINE_S)

    def stop(self) -> None:
        """Shut NVML down. A driver that was unloaded, or does not answer, has nothing left to release."""
        try:
            self.ask(self.nvml.nvmlShutdown, timeout_s=self.deadline_s)
        except (ProbeError, self.nvml.NVMLError) as error:
            log.info("nvml_shutdown_refused", words=str(error))

    def ask(self, work: Callable[[], Result], *, timeout_s: float = HOST_DEADLINE_S) -> Result:
        """Make a call about the host. Raises ProbeError; NVMLError where the fault is about this call alone."""
        try:
            return self._callers.within(timeout_s, "host", work)
        except NoAnswerError as error:
            words = f"the NVIDIA driver does not answer: {error}"
            raise ProbeError(words, "Read the kernel log (`dmesg`); a reboot may be needed.") from error
        except self.nvml.NVMLError as error:
            fault = nvml_library.host_fault(error.value)
            if fault is None:
                raise
            raise fault from error

    def words(self, work: Callable[[], str]) -> str | None:
        """Return a text about the host; None where this driver does not report it."""
        try:
            return self.ask(work)
        except self.nvml.NVMLError:
            return None

    def each(self, work: Mapping[str, Callable[[], Result]]) -> dict[str, Result | BaseException]:
        """Return key → answer or error, all within the deadline. A key that still hangs is not called again."""
        return self._callers.all_within(self.deadline_s, work)
