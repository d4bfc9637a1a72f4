"""Execution of repair verbs: on this host by the vendor's and the system's own programs, without a shell."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

from agents.dcgm.diagnosing import DcgmDiag, DiagnosingError
from agents.ending import end_with_group
from agents.probes.interface import GpuIdentity
from muster.domain.evidence.repairs import RepairVerb

DIAGNOSIS_LEVEL: Final = 3
"""Level of ``dcgmi diag -r 3``, which takes about half an hour."""
COMMAND_S: Final = 120.0
"""Longest time that one program may take."""
WORDS_MAX: Final = 600
POLL_S: Final = 0.1
_DRIVER_MODULES: Final = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
"""The order in which modules are unloaded: each is used by those before it."""
Released = Callable[[], AbstractContextManager[None]]


class HandsError(Exception):
    """The verb was not done, or failed. The text states the reason."""


class Hands(Protocol):
    @property
    def is_simulated(self) -> bool: ...

    def do(self, verb: RepairVerb, gpu: GpuIdentity, deadline_s: float, stop: threading.Event) -> str:
        """Do the verb and return a text about it.

        A reboot returns once it is requested. Raises HandsError or ProbeError.
        """
        ...


@dataclass(frozen=True, slots=True)
class AllowedRepairs:
    """The repairs that the settings of a host allow, by their verbs, and the hands that carry them out."""

    hands: Hands
    verbs: frozenset[RepairVerb]


@dataclass(frozen=True, slots=True)
class Commands:
    """Programs by a fixed list of words, in bounded time. ``path``: the search path; None: PATH."""

    path: str | None = None

    def run(self, words: Sequence[str], limit_s: float, stop: threading.Event) -> str:
        """Run a program and return the end of its output.

        Raises HandsError: it is not here, failed, or took too long.
        """
        program = shutil.which(words[0], path=self.path)
        if program is None:
            raise HandsError(f"{words[0]} is not on this host")
        with TemporaryDirectory(prefix="muster-repair-") as folder:
            out = Path(folder) / "out"
            with out.open("wb") as output:
                try:
                    process = subprocess.Popen(  # noqa: S603  # of the closed list below, no shell
                        [program, *words[1:]],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                        start_new_session=True,
                    )
                except OSError as error:
                    raise HandsError(f"{program} cannot be started: {error}") from None
                fault = _wait(process, limit_s, stop)
            said = _end_of(out)
        told = f": {said}" if said else ""
        if fault is not None:
            raise HandsError(f"{' '.join(words)} {fault}{told}")
        if process.returncode != 0:
            raise HandsError(f"{' '.join(words)} ended with {process.returncode}{told}")
        return said


@dataclass(frozen=True, slots=True)
class HostHands:
    """Verbs on this host. ``released``: releases the agent's own hold on the driver for its duration."""

    released: Released = nullcontext
    commands: Commands = field(default_factory=Commands)
    modules: Path = Path("/proc/modules")
    is_simulated: bool = False

    def do(self, verb: RepairVerb, gpu: GpuIdentity, deadline_s: float, stop: threading.Event) -> str:
        until_s = time.monotonic() + deadline_s
        if verb is RepairVerb.DIAGNOSIS:
            return self._diagnose(gpu, deadline_s, stop)
        if verb is RepairVerb.REBOOT:
            return self._each((("systemctl", "reboot"),), until_s, stop)
        with self.released():
            if verb is RepairVerb.DRIVER_RELOAD:
                return self._reload(until_s, stop)
            return self._each((("nvidia-smi", "--gpu-reset", "-i", gpu.uuid),), until_s, stop)

    def _reload(self, until_s: float, stop: threading.Event) -> str:
        """Reload the driver.

        The loaded modules are loaded again in any case, in time of their own: no host stays without them.
        """
        loaded = [module for module in _DRIVER_MODULES if module in _names_in(self.modules)]
        if not loaded:
            raise HandsError("no module of the driver is loaded")
        try:
            said = self._each((("modprobe", "-r", *loaded),), until_s, stop)
        finally:
            load = self._each([("modprobe", module) for module in reversed(loaded)], None, threading.Event())
        return f"{said}; {load}"

    def _each(self, steps: Sequence[Sequence[str]], until_s: float | None, stop: threading.Event) -> str:
        """Run the steps. ``until_s``: None gives each its whole time."""
        said = ""
        for words in steps:
            limit_s = COMMAND_S if until_s is None else min(COMMAND_S, until_s - time.monotonic())
            said = self.commands.run(words, max(0.0, limit_s), stop)
        done = "; ".join(" ".join(words) for words in steps)
        return f"{done}: {said}" if said else f"{done}: done"

    def _diagnose(self, gpu: GpuIdentity, deadline_s: float, stop: threading.Event) -> str:
        program = shutil.which("dcgmi", path=self.commands.path)
        if program is None:
            raise HandsError("dcgmi is not on this host: install DCGM")
        try:
            found = DcgmDiag(DIAGNOSIS_LEVEL, program).run(gpu.index, gpu.serial, deadline_s, stop)
        except DiagnosingError as error:
            raise HandsError(str(error)) from error
        if found.failures:
            raise HandsError(f"{found.tool}, level {found.level}: {'; '.join(found.failures)}")
        return f"{found.tool}, level {found.level}: {found.num_passed} tests passed"


def _names_in(modules: Path) -> frozenset[str]:
    """Return the kernel's modules, by the first word of each line of /proc/modules. Raises HandsError."""
    try:
        lines = modules.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise HandsError(f"{modules} cannot be read: {error}") from None
    return frozenset(line.split(" ", 1)[0] for line in lines)


def _wait(process: "subprocess.Popen[bytes]", limit_s: float, stop: threading.Event) -> str | None:
    """Return why the program was ended; None where it ended by itself. Its own children have ended afterwards, too."""
    until_s = time.monotonic() + limit_s
    try:
        while process.poll() is None:
            if stop.wait(POLL_S):
                return "was interrupted: the agent was asked to end"
            if time.monotonic() >= until_s:
                return f"did not end within {limit_s:g} s"
    finally:
        end_with_group(process)
    return None


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - WORDS_MAX))
        return " ".join(file.read(WORDS_MAX).decode("utf-8", "replace").split())
