"""Dumps of NCCL's flight recorder: they are requested while a hang still stands, and join the ranks' reports.

NCCL's monitor thread reads the pipe ``flight/rank_3.pipe`` once a second. A byte in it makes the process write its dump
to ``flight/rank_3``; that needs no help of the main thread. Without a reader of the pipe there is no NCCL in the rank,
or its monitor is off. A dump that NCCL wrote by itself, at its own timeout, counts as well.

    pipe ── byte ──> NCCL ── dump ──> open file ──> a process with bounds ── JSON ──> the rank's report

Pipe and dump are the program's own files: no link is followed, and nothing here waits for either without a bound.
"""

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from muster.plain_files import open_plain
from watch.forensics.documents import from_document
from watch.forensics.flight_recorder import Dump, with_dump
from watch.forensics.newest import newest_of
from watch.reports import HostReport, ProcessState, RankReport
from workers.host.supervisor import files
from workers.host.watch.dump_process import MOST_COLLECTIVES
from workers.host.watch.part import Part

DUMP_WAIT_S: Final = 5.0
"""From the request to the end of the wait: the pipe is read once a second, and a dump may have megabytes."""
READ_WAIT_S: Final = 10.0
MOST_DUMPS: Final = 64
MOST_BYTES: Final = 16 << 20
"""Of one dump: the newest entries are last, so a longer one is not used at all."""
MOST_BYTES_OF_ALL: Final = 128 << 20
MOST_NOTES: Final = 16
_MOST_ANSWER_BYTES: Final = 32 << 20
_SLACK_S: Final = 1.0
_SLACK_WITHOUT_SENSOR_S: Final = 60.0
"""A program without a sensor prints what NCCL says of its timeout, and so it seems to move after its dump."""
_PAUSE_S: Final = 0.05
_ROOT: Final = str(Path(__file__).resolve().parents[3])
_START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from workers.host.watch.dump_process import main; main(sys.argv[2:])"
)
_Stamp = tuple[int, int, int]


@dataclass(slots=True)
class Dumps:
    """Dumps of one part at one moment. ``request`` first; ``joined`` later, when stacks have been taken."""

    part: Part
    _before: dict[int, _Stamp | None] = field(default_factory=dict)
    """Ranks whose NCCL got the request, with their dumps until then."""
    _why_not: dict[int, str] = field(default_factory=dict)
    _until_s: float = 0.0
    _requested_s: float = 0.0
    """By the clock of files: how long a rank had stood still is known for this moment."""

    def request(self, reports: tuple[RankReport, ...]) -> None:
        """Ask NCCL in each rank for its dump. It waits for nothing."""
        self._until_s, self._requested_s = time.monotonic() + DUMP_WAIT_S, time.time()
        for report in reports[:MOST_DUMPS]:
            before = _stamp(self._path(report.rank))
            if report.process is ProcessState.STOPPED:
                self._why_not[report.rank] = "its process is stopped"
            elif self._ask(report.rank):
                self._before[report.rank] = before

    def joined(self, reports: tuple[RankReport, ...]) -> tuple[tuple[RankReport, ...], tuple[str, ...]]:
        """Return the reports with their dumps, as far as there are any, and notes about missing ones."""
        self._wait()
        found, notes = self._read(reports)
        if found or self._before or notes:
            missing = [each.rank for each in reports if each.rank not in found]
            notes += [f"rank {rank} has no dump of the flight recorder: {self._why(rank)}" for rank in missing]
        return tuple(_joined(report, found.get(report.rank)) for report in reports), tuple(notes[:MOST_NOTES])

    def _path(self, rank: int) -> Path:
        return self.part.folder / files.FLIGHT / f"rank_{rank}"

    def _ask(self, rank: int) -> bool:
        """Write to the rank's pipe. Returns whether there is one that a process reads."""
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        pipe = self._path(rank).with_name(f"rank_{rank}.pipe")
        try:
            if not stat.S_ISFIFO(pipe.lstat().st_mode):
                return False
            descriptor = os.open(pipe, flags)
        except FileNotFoundError:
            return False
        except OSError as fault:
            self._why_not[rank] = f"its pipe takes no request: {fault.strerror}"
            return False
        try:
            if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                os.write(descriptor, b"1")
                return True
        except OSError as fault:
            self._why_not[rank] = f"its pipe takes no request: {fault.strerror}"
        finally:
            os.close(descriptor)
        return False

    def _wait(self) -> None:
        """Wait until each dump that was asked for is whole, or the time is over."""
        seen: dict[int, _Stamp | None] = {}
        waiting = set(self._before)
        while waiting and time.monotonic() < self._until_s:
            for rank in sorted(waiting):
                now, last = _stamp(self._path(rank)), seen.get(rank)
                seen[rank] = now
                if now != self._before[rank] and now == last and _is_whole(self._path(rank)):
                    waiting.discard(rank)
            if waiting:
                time.sleep(_PAUSE_S)

    def _read(self, reports: tuple[RankReport, ...]) -> tuple[dict[int, Dump], list[str]]:
        opened: dict[int, int] = {}
        num_bytes = 0
        try:
            for report in reports[:MOST_DUMPS]:
                descriptor = self._open(report, MOST_BYTES_OF_ALL - num_bytes)
                if descriptor is not None:
                    opened[report.rank] = descriptor
                    num_bytes += os.fstat(descriptor).st_size
            return self._parsed(opened) if opened else ({}, [])
        finally:
            for descriptor in opened.values():
                os.close(descriptor)

    def _open(self, report: RankReport, most_bytes: int) -> int | None:
        """Return the rank's dump, open, if it is a plain file of this hang."""
        try:
            descriptor = open_plain(self._path(report.rank))
        except OSError as fault:
            if not isinstance(fault, FileNotFoundError):
                self._why_not[report.rank] = f"its file cannot be opened: {fault.strerror}"
            return None
        about = os.fstat(descriptor)
        slack_s = _SLACK_S if report.has_sensor else _SLACK_WITHOUT_SENSOR_S
        if not stat.S_ISREG(about.st_mode):
            why = "its file is no plain file"
        elif about.st_mtime < self._requested_s - report.still_s - slack_s:
            why = "the one it has is older than its last progress"
        elif about.st_size > min(MOST_BYTES, most_bytes):
            why = f"it has {about.st_size:,} bytes, and {min(MOST_BYTES, most_bytes):,} are read"
        else:
            return descriptor
        os.close(descriptor)
        self._why_not[report.rank] = why
        return None

    def _parsed(self, opened: Mapping[int, int]) -> tuple[dict[int, Dump], list[str]]:
        """Return the dumps that the reading process could use, and notes about all others."""
        found: dict[int, Dump] = {}
        notes: list[str] = []
        answered = set()
        for answer in _answers(opened):
            (rank,) = answer.ranks
            answered.add(rank.rank)
            is_used = bool(rank.collectives) or not any(note.startswith("not used: ") for note in answer.notes)
            if is_used:
                found[rank.rank] = Dump(rank.collectives, rank.stack)
                notes += [f"dump of rank {rank.rank}: {note}" for note in answer.notes]
            else:
                self._why_not[rank.rank] = answer.notes[0]
        for number in opened.keys() - answered:
            self._why_not[number] = "not used: reading it took too long or too much memory"
        return found, notes

    def _why(self, rank: int) -> str:
        none = "none was written" if rank in self._before else "no process of it reads NCCL's pipe"
        return self._why_not.get(rank, none)


def _answers(opened: Mapping[int, int]) -> Iterator[HostReport]:
    """Yield what the reading process says of each dump, until its time is over or it ends."""
    command = [sys.executable, "-I", "-S", "-c", _START, _ROOT, *(f"{rank}:{each}" for rank, each in opened.items())]
    try:
        ended = subprocess.run(  # noqa: S603  # our own program, with numbers as its arguments
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=tuple(opened.values()), timeout=READ_WAIT_S, check=False, env={}, cwd="/",
        )  # fmt: skip
        output = ended.stdout
    except subprocess.TimeoutExpired as over:
        output = over.stdout or b""
    except OSError:
        return
    for line in output[:_MOST_ANSWER_BYTES].splitlines():
        with suppress(ValueError):  # its last line, where it was ended
            report = from_document(json.loads(line))
            if len(report.ranks) == 1 and report.ranks[0].rank in opened:
                yield report


def _joined(report: RankReport, dump: Dump | None) -> RankReport:
    if dump is None:
        return report
    whole = with_dump(report, dump)
    return replace(whole, collectives=newest_of(whole.collectives, MOST_COLLECTIVES))


def _stamp(path: Path) -> _Stamp | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _is_whole(path: Path) -> bool:
    """Return whether the file ends as a pickle or an object of JSON does: NCCL writes it in place."""
    try:
        descriptor = open_plain(path)
    except OSError:
        return False
    try:
        about = os.fstat(descriptor)
        is_plain = stat.S_ISREG(about.st_mode) and about.st_size > 0
        return is_plain and os.pread(descriptor, 16, max(0, about.st_size - 16)).rstrip().endswith((b".", b"}"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
