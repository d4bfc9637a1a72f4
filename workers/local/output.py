"""Output of an attempt's ranks and their training messages, as they arrive."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from muster.wire import training
from workers.host.supervisor import files
from workers.host.training_relay import next_lines
from workers.local.line_notes import LineNotes
from workers.local.stragglers import LocalStragglers

OUTPUT_POLL_S: Final = 0.05
READ_BYTES: Final = 1 << 20
LONGEST_LINE: Final = 64 << 10


@dataclass(slots=True)
class Received:
    """Facts from the ranks. ``resumed_step``: the checkpoint's step at the begin. ``saved_step``: of the newest
    verified one.
    """

    resumed_step: int = 0
    step: int = 0
    saved_step: int | None = None
    loss: float | None = None


@dataclass(slots=True)
class OutputReader:
    """Reader of an attempt's files. ``report``: takes a sentence about the run. ``show``: takes a stream's name and a
    line.

    ``show`` may take its time. ``limit_bytes``: how much of each stream is stored at all. ``stragglers``: takes each
    rank's pace.
    """

    folder: Path
    report: Callable[[str], None]
    show: Callable[[str, str], None]
    limit_bytes: int
    stragglers: LocalStragglers | None = None
    received: Received = field(default_factory=Received)
    _offset: int = 0
    _offsets: dict[str, int] = field(default_factory=dict)
    _rests: dict[str, bytes] = field(default_factory=dict)
    _notes: LineNotes = field(init=False)

    def __post_init__(self) -> None:
        self._notes = LineNotes(self.report)

    def listen(self) -> None:
        """Read what is new."""
        for name, printed in self._new_lines():
            self.show(name, printed)
        while True:
            lines, next_offset = next_lines(self.folder / files.TRAIN, self._offset)
            if next_offset == self._offset:
                return
            self._offset = next_offset
            for line in lines:
                self._take(line)

    def listen_until(self, is_over: threading.Event) -> None:
        """Read in a thread of its own: the reader of our output may pause for any time."""
        while not is_over.wait(OUTPUT_POLL_S):
            self.listen()
        self.finish()

    def finish(self) -> None:
        """Read the rest after the end, with the lines that lack an end."""
        self.listen()
        for name, rest in sorted(self._rests.items()):
            if rest:
                self.show(name, rest.decode("utf-8", "replace"))
        self._rests.clear()

    def _new_lines(self) -> Iterator[tuple[str, str]]:
        for path in sorted((self.folder / files.LOGS).glob("*.log")):
            name = path.stem
            while content := _read_from(path, self._offsets.get(name, 0)):
                self._offsets[name] = self._offsets.get(name, 0) + len(content)
                self._notes.take(name, content)
                if self._offsets[name] >= self.limit_bytes:
                    self.report(
                        f"{_named(name)} has printed {self.limit_bytes >> 20} MiB; further output is not stored"
                    )
                *lines, rest = (self._rests.get(name, b"") + content).split(b"\n")
                if len(rest) > LONGEST_LINE:
                    lines, rest = [*lines, rest], b""
                self._rests[name] = rest
                for line in lines:
                    yield name, line.decode("utf-8", "replace")

    def _take(self, line: training.TrainLine) -> None:
        """Take a line; a message of a newer runtime that is unknown here is skipped."""
        try:
            message = msgspec.convert(line.message, type=training.AnyRankMessage)
        except msgspec.ValidationError:
            return
        if line.rank in {0, None}:
            self._note(message)
        if isinstance(message, training.Pace) and line.rank is not None and self.stragglers is not None:
            self.stragglers.take(line.rank, message)

    def _note(self, message: training.AnyRankMessage) -> None:
        heard = self.received
        match message:
            case training.StepDone():
                heard.step = max(heard.step, message.step)
                heard.loss = message.loss
            case training.Resumed(step=step, generation=generation):
                heard.resumed_step = heard.step = step
                self.report(f"continues after step {step}, from {generation}" if generation else "begins at the start")
            case training.CheckpointDone(status="verified", step=step):
                heard.saved_step = max(heard.saved_step or 0, step)
            case training.CheckpointDone(status="failed", step=step, why=why):
                self.report(f"the checkpoint of step {step} could not be saved: {why}")
            case training.CheckpointRejected(generation=generation, why=why):
                self.report(f"{generation} is refused: {why}")
            case training.ValueFault(reason=why) | training.ReplicaFault(reason=why) | training.Rerun(reason=why):
                self.report(f"fault of values: {why}")
            case training.RolledBack(from_step=step, generation=generation):
                self.report(f"rolled back from step {step}, to {generation}{_skipped(message)}")
            case training.Spiked(step=step, what=what, value=value, usual=usual, is_shown=True):
                self.report(f"spike: {what} is {value:.4g} at step {step}, and was {usual:.4g} before")
            case training.Warned(code=code, message=words):
                self.report(f"warning: {code}: {words}")
            case _:
                return


def _skipped(message: training.RolledBack) -> str:
    if message.skipped:
        return f"; {message.skipped} are skipped"
    if message.skipped_to <= message.skipped_from:
        return ""
    return f"; samples {message.skipped_from:,} to {message.skipped_to - 1:,} are skipped"


def _named(stream: str) -> str:
    return f"rank {stream}" if stream.isdigit() else stream


def _read_from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(READ_BYTES)
