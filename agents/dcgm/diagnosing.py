"""``dcgmi diag`` run on one GPU, in bounded time: its result as text, or the reason why there is none.

It computes on the GPU, so it is part of a burn-in where the host's owner enables it, and never runs together with a
job.
"""

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from agents.dcgm.diagnosis import Diagnosis, DiagnosisError, TestResult, parse_diagnosis
from agents.ending import end_with_group

COMMAND: Final = "dcgmi"
OUTPUT_BYTES_MAX: Final = 8 << 20
POLL_S: Final = 0.25
_NOT_THE_GPU: Final = frozenset({"configuration"})
"""DCGM's advice where the host is set up wrongly: no GPU fails for it."""
_ERROR_CHARACTERS: Final = 300


class DiagnosingError(Exception):
    """There is no result, with the reason: the GPU is neither good nor bad by it."""


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """Result of the diagnosis. ``failures``: of the tests of this GPU, a sentence each."""

    tool: str
    level: int
    num_passed: int
    failures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DcgmDiag:
    """The diagnosis. ``level`` 1 to 4, as ``dcgmi diag -r``: seconds, two minutes, half an hour, two hours."""

    level: int
    command: str = COMMAND

    def run(self, index: int, serial: str | None, deadline_s: float, stop: threading.Event) -> Diagnosed:
        """Return the result for the GPU in slot ``index``. Raises DiagnosingError."""
        path = shutil.which(self.command)
        if path is None:
            raise DiagnosingError(f"{self.command} is not on this host: install DCGM, or leave its tests out")
        with TemporaryDirectory(prefix="muster-dcgm-") as folder:
            text, said = self._output(path, index, deadline_s, stop, Path(folder))
        try:
            found = parse_diagnosis(text)
        except DiagnosisError as error:
            raise DiagnosingError(f"{self._named}: {error}{f' ({said})' if said else ''}") from None
        return self._judged(found, index, serial)

    @property
    def _named(self) -> str:
        return f"{self.command} diag -r {self.level}"

    def _output(self, path: str, index: int, deadline_s: float, stop: threading.Event, folder: Path) -> tuple[str, str]:
        """Return the output and the end of the error output. Both go to files: a full pipe would block the program."""
        out, err = folder / "out", folder / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            try:
                process = subprocess.Popen(  # noqa: S603  # DCGM's own program, where PATH has it
                    [path, "diag", "-r", str(self.level), "-j", "-i", str(index)],
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise DiagnosingError(f"{path} cannot be started: {error}") from None
            fault = _wait(process, out, deadline_s, stop)
        if fault is not None:
            raise DiagnosingError(f"{self._named}: {fault}")
        said = err.read_bytes()[-_ERROR_CHARACTERS:].decode("utf-8", "replace").strip()
        return out.read_bytes().decode("utf-8", "replace"), said

    def _judged(self, found: Diagnosis, index: int, serial: str | None) -> Diagnosed:
        if found.fault is not None:
            raise DiagnosingError(f"{self._named} did not finish: {found.fault}")
        for result in found.results:
            if _is_gpu(result) and serial is not None and result.serial not in {None, serial}:
                raise DiagnosingError(f"{self._named} tested the GPU {result.serial}, not {serial} in slot {index}")
        open_results = [each for each in found.results if each.status == "unknown"]
        if open_results:
            raise DiagnosingError(f"{self._named}: the result of {open_results[0].test} cannot be understood")
        failed = [each for each in found.results if each.status == "fail"]
        of_host = [each for each in failed if not _is_about(each, index)]
        if of_host:
            raise DiagnosingError(f"{self._named}: {_sentence(of_host[0])}, which is no fault of this GPU")
        passed = [each for each in found.results if each.status in {"pass", "warn"} and _is_gpu(each)]
        if not passed and not failed:
            raise DiagnosingError(f"{self._named} tested nothing of this GPU")
        tool = f"DCGM {found.version}" if found.version else "DCGM of an unknown version"
        return Diagnosed(tool, self.level, len(passed), tuple(map(_sentence, failed)))


def _wait(process: "subprocess.Popen[bytes]", out: Path, deadline_s: float, stop: threading.Event) -> str | None:
    """Return why the program was ended; None where it ended by itself. Its own children have ended afterwards, too."""
    until = time.monotonic() + deadline_s
    try:
        while process.poll() is None:
            if stop.wait(POLL_S):
                return "the agent was asked to end"
            if time.monotonic() >= until:
                return f"it did not end within {deadline_s:g} s"
            if out.stat().st_size > OUTPUT_BYTES_MAX:
                return f"it wrote more than {OUTPUT_BYTES_MAX >> 20} MiB"
    finally:
        end_with_group(process)
    return None


def _is_gpu(result: TestResult) -> bool:
    return result.entity_group.upper() == "GPU"


def _is_about(result: TestResult, index: int) -> bool:
    """Return whether the result counts against the GPU itself: on it, and not about the host's configuration."""
    if not _is_gpu(result) or result.entity_id not in {None, index}:
        return False
    advised = {each.severity for each in result.warnings if each.severity is not None}
    return not advised or bool(advised - _NOT_THE_GPU)


def _sentence(result: TestResult) -> str:
    entity = result.entity_group if result.entity_id is None else f"{result.entity_group} {result.entity_id}"
    why = "; ".join(_words(result))
    return f"{result.test} failed on {entity}: {why}" if why else f"{result.test} failed on {entity}"


def _words(result: TestResult) -> Iterator[str]:
    for each in result.warnings:
        words = " ".join(each.text.split())
        number = f" (DCGM {each.error_id})" if each.error_id is not None else ""
        yield f"{words[:_ERROR_CHARACTERS]}{number}"
