"""Stacks of ranks by the best means that answers: the sensor's thread, faulthandler, py-spy, the kernel.

All that a tenant's program may have written is read with bounds and by a strict reader, never through a link.
"""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from muster.plain_files import open_plain
from watch.forensics.documents import VERSION, from_document
from watch.reports import Frame, ProcessState, RankReport, StackSource
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.watch.part import Part
from workers.host.watch.processes import catches, state_of

SENSOR_WAIT_S: Final = 2.0
SIGNAL_WAIT_S: Final = 1.0
PY_SPY_WAIT_S: Final = 5.0
MOST_PY_SPY: Final = 8
"""Ranks that py-spy may look at: it takes seconds for each."""
MOST_BYTES: Final = 64 << 10
MOST_FRAMES: Final = 64
_PAUSE_S: Final = 0.02
_FAULTHANDLER: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d{1,9}) in (?P<function>.*)$')
_OF_KERNEL: Final = re.compile(r"^\[<[^>]*>\] (?P<function>[\w.]+)")


@dataclass(frozen=True, slots=True)
class Means:
    """Where stacks come from. ``pid_of``: the process of a rank on this host."""

    part: Part
    pid_of: Callable[[int], int | None]
    py_spy: str | None = None

    @classmethod
    def of(cls, part: Part, pid_of: Callable[[int], int | None]) -> "Means":
        return cls(part, pid_of, shutil.which("py-spy"))

    def take(self, reports: tuple[RankReport, ...]) -> tuple[RankReport, ...]:
        """Return the reports with a stack each, as far as one is available. It takes some seconds at most."""
        found = self._of_sensors(reports)
        found = tuple(self._of_faulthandler(report) for report in found)
        num_spied = 0
        taken: list[RankReport] = []
        for report in found:
            if report.stack or report.process is ProcessState.GONE:
                taken.append(report)
                continue
            is_spied = num_spied < MOST_PY_SPY and self.py_spy is not None
            num_spied += is_spied
            taken.append(self._of_others(report, is_spied=is_spied))
        return tuple(taken)

    def _of_sensors(self, reports: tuple[RankReport, ...]) -> tuple[RankReport, ...]:
        """Ask the sensors, and wait until each has answered or the time is over."""
        wanted = {each.rank for each in reports if each.has_sensor and each.process is not ProcessState.STOPPED}
        number = time.monotonic_ns()
        with suppress(OSError):
            files.replace_json(self.part.folder / files.COLLECT, {"id": number})
            supervisor.wake(self.part.folder)
        answers: dict[int, Mapping[str, Any]] = {}
        until = time.monotonic() + SENSOR_WAIT_S
        while wanted - answers.keys() and time.monotonic() < until:
            answers |= _answers(self.part, wanted - answers.keys(), number)
            time.sleep(_PAUSE_S)
        return tuple(_with_answer(report, answers.get(report.rank)) for report in reports)

    def _of_faulthandler(self, report: RankReport) -> RankReport:
        """Ask by a signal where the sensor did not answer: a call into C holds the interpreter's lock."""
        pid = None if report.stack or not report.has_sensor else self.pid_of(report.rank)
        if pid is None or report.process is ProcessState.STOPPED:
            return report
        number = int(signal.SIGRTMAX) - 3
        path = files.scratch_path(self.part.folder) / f"stack-{report.rank}.txt"
        before = _size(path)
        if before is None or not catches(pid, number):
            return report
        with suppress(OSError):
            os.kill(pid, number)
        until = time.monotonic() + SIGNAL_WAIT_S
        while (_size(path) or 0) <= before and time.monotonic() < until:
            time.sleep(_PAUSE_S)
        time.sleep(_PAUSE_S)  # it is written in several pieces
        frames = parse_faulthandler(_read(path, before))
        return _with_stack(report, frames, StackSource.FAULTHANDLER)

    def _of_others(self, report: RankReport, *, is_spied: bool) -> RankReport:
        pid = self.pid_of(report.rank)
        if pid is None:
            return report
        report = replace(report, process=state_of(pid))
        if is_spied and self.py_spy is not None and report.process is not ProcessState.STOPPED:
            spied = _with_stack(report, _spied(self.py_spy, pid), StackSource.PY_SPY)
            if spied.stack:
                return spied
        return _with_stack(report, _of_kernel(pid), StackSource.KERNEL)


def with_late_answers(part: Part, reports: tuple[RankReport, ...]) -> tuple[RankReport, ...]:
    """Return the reports with answers of sensors that came after the wait for them, such as from a busy host.

    A sensor's stack is better than one from outside. Collectives of a dump stay.
    """
    number = (files.read_json(part.folder / files.COLLECT) or {}).get("id")
    wanted = {each.rank for each in reports if each.has_sensor and each.stack_source is not StackSource.SENSOR_THREAD}
    answers = _answers(part, wanted, number) if isinstance(number, int) else {}
    found = [_with_answer(report, answers.get(report.rank)) for report in reports]
    return tuple(
        replace(late, collectives=before.collectives or late.collectives)
        for before, late in zip(reports, found, strict=True)
    )


def _answers(part: Part, ranks: set[int], number: int) -> dict[int, Mapping[str, Any]]:
    """Return the sensors' answers to the request ``number``, as far as they have come."""
    found: dict[int, Mapping[str, Any]] = {}
    for rank in ranks:
        stack = (files.read_json(part.folder / files.SENSORS / f"stack-{rank}.json") or {}).get("stack")
        if isinstance(stack, dict) and stack.get("id") == number:
            found[rank] = stack
    return found


def parse_faulthandler(text: str) -> tuple[Frame, ...]:
    """Return the frames that ``faulthandler`` has written, innermost first."""
    found = (_FAULTHANDLER.match(line) for line in text.splitlines())
    return tuple(Frame(each["function"], each["file"], int(each["line"])) for each in found if each)


def parse_py_spy(text: str) -> tuple[Frame, ...]:
    """Return the frames of the main thread of ``py-spy dump --json``, innermost first; none if it is no such dump."""
    try:
        threads = json.loads(text)
        main = next((each for each in threads if each.get("thread_name") == "MainThread"), threads[0])
        return tuple(
            Frame(str(each["name"]), str(each["filename"]), int(each["line"])) for each in main["frames"][:MOST_FRAMES]
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ()


def _spied(py_spy: str, pid: int) -> tuple[Frame, ...]:
    try:
        ended = subprocess.run(  # noqa: S603  # found on our own path, with a number as its argument
            [py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid)],
            capture_output=True,
            timeout=PY_SPY_WAIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_py_spy(ended.stdout[: 1 << 20].decode("utf-8", "replace"))


def _of_kernel(pid: int) -> tuple[Frame, ...]:
    """Return the functions of the kernel in which the process waits; ``wchan`` alone where its stack is closed."""
    place = Path("/proc") / str(pid)
    with suppress(OSError):
        found = (_OF_KERNEL.match(line) for line in (place / "stack").read_text(encoding="ascii").splitlines())
        if frames := tuple(Frame(each["function"], "kernel") for each in found if each):
            return frames[:MOST_FRAMES]
    with suppress(OSError):
        waits = (place / "wchan").read_text(encoding="ascii").strip()
        if waits and waits != "0":
            return (Frame(waits, "kernel"),)
    return ()


def _with_answer(report: RankReport, answer: Mapping[str, Any] | None) -> RankReport:
    if answer is None:
        return report
    rank = {"rank": report.rank, "phase": str(report.phase)}
    told = {"stack": answer.get("frames"), "collectives": answer.get("collectives")}
    document = {"version": VERSION, "node": "", "at_ms": 0, "ranks": [{**rank, **told}]}
    try:
        (read,) = from_document(document).ranks
    except ValueError:  # a program wrote it, and it is no stack
        return report
    return replace(_with_stack(report, read.stack, StackSource.SENSOR_THREAD), collectives=read.collectives)


def _with_stack(report: RankReport, frames: tuple[Frame, ...], source: StackSource) -> RankReport:
    return replace(report, stack=frames[:MOST_FRAMES], stack_source=source) if frames else report


def _size(path: Path) -> int | None:
    """Return the size of a plain file; None for anything else."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _read(path: Path, offset: int) -> str:
    try:
        descriptor = open_plain(path)
    except OSError:
        return ""
    try:
        return os.pread(descriptor, MOST_BYTES, offset).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
