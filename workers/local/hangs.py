"""The watch over an attempt on this machine: what it found, judged, for the run that decides what follows."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from muster.domain.policy.watch import HangRule, WatchPolicy
from watch.forensics.judge import judge_hang
from watch.progress.durations import Durations
from watch.verdicts import Verdict
from workers.host.supervisor import files
from workers.host.watch.host_watch import KEPT_EVERY
from workers.host.watch.learnt import Learnt
from workers.host.watch.part import Part
from workers.host.watch.part_watch import KernelLines, Moving, PartWatch, Stalled, no_lines

TURN_S: Final = 1.0
STOP_WAIT_S: Final = 1.0
HUNG_GRACE_MS: Final = 5_000
"""Between SIGTERM and SIGKILL of a hung attempt: its ranks cannot save together, a background save may end."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hang:
    """A hang with its verdict. ``still_s``: since the last progress. ``report``: the file that holds all evidence."""

    verdict: Verdict
    still_s: float
    report: Path


@dataclass(slots=True)
class HangWatch:
    """Watch in a thread of its own, since taking stacks may last some seconds. ``news`` returns what it found.

    ``kept``: the file of what it has learnt, for later runs.
    """

    folder: Path
    policy: WatchPolicy
    durations: Durations
    kept: Path
    readings: Callable[[], Mapping[str, float]] = dict
    kernel: KernelLines = no_lines
    _found: "queue.SimpleQueue[Hang | Moving]" = field(default_factory=queue.SimpleQueue)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch. It keeps what it has learnt, unless it is taking stacks."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)

    def news(self) -> Iterator[Hang | Moving]:
        """Yield what was found since the last call."""
        while True:
            try:
                yield self._found.get_nowait()
            except queue.Empty:
                return

    def _run(self) -> None:
        part = Part.of(self.folder)
        if part is None:
            return
        watched = PartWatch(part, self.policy, self.durations, self.readings, self.kernel, is_only_host=True)
        learnt = Learnt(self.durations, self.policy)
        has_failed = is_stalled = False
        num_turns = 0
        while not self._is_over.wait(TURN_S):
            num_turns += 1
            try:
                self._keep(learnt, is_due=num_turns % KEPT_EVERY == 0)
                found = watched.turn()
            except Exception as fault:  # noqa: BLE001  # a full disk, or what a program wrote: the next turn tries again
                if not has_failed:
                    has_failed = True
                    _log.warning("watch_failed", attempt_id=self.folder.name, why=repr(fault))
                continue
            if isinstance(found, Stalled):
                if is_stalled:  # repeated each minute for a server that lost it; a run has it already
                    continue
                is_stalled = True
                path = self.folder / "watch" / f"host-{part.node}.json"
                self._found.put(Hang(judge_hang([found.report]), found.overdue.still_s, path))
            elif found is not None:
                is_stalled = False
                self._found.put(found)
        self._keep(learnt, is_due=True)

    def _keep(self, learnt: Learnt, *, is_due: bool) -> None:
        if (durations := learnt.news(is_due=is_due)) is not None:
            with suppress(OSError):  # a full disk: the next run begins without them
                files.replace_json(self.kept, durations)


def words_of(found: Hang | Moving, rule: HangRule) -> str:
    """Return one sentence about it for a person."""
    if isinstance(found, Moving):
        return f"makes progress again after {found.still_s:.0f} s"
    what = {"restart": "ending the attempt", "hold": "ending the run", "notify": "it continues"}
    return f"hang: {found.verdict.sentence} No progress for {found.still_s:.0f} s; {what[rule]}; see {found.report}"
