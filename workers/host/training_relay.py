"""Brings what ranks say of their training to the control plane: each line once, whatever dies on the way.

The server says itself where it stands in the host's file, so a batch that is sent again has no effect, and what was
written down here is only where to begin. What the server does not want is passed over and counted, so that it keeps no
room of what may wait and holds up nothing behind it.
"""

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.domain.errors import StaleFenceError
from muster.domain.ids import AttemptId
from muster.durable import write_durably
from muster.failpoints import declare, failpoint
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from workers.host.supervisor import files
from workers.host.supervisor.files import PINS, RELAYED, RELAYED_TRAINING, TRAIN

BATCH_LINES: Final = 1_000
BATCH_BYTES: Final = 512 << 10
MOST_BATCHES: Final = 64
"""Of an attempt's logs, and of its training, in one turn: a program that writes without end keeps no other waiting."""
NUM_REFUSED: Final = "training_refused"
"""Beside the offsets: how many lines of this attempt the server did not want."""
_GIVEN_UP: Final = "training_given_up"
AFTER_ANSWER: Final = declare("training_relay.after_answer")
_OF_THE_MOMENT: Final = frozenset({401, 403, 408, 425, 429})
_LINE: Final = msgspec.json.Decoder(TrainLine)
_log = structlog.get_logger(__name__)


class TrainingRelay:
    """One attempt's turn. ``offsets``: how far its streams are, as ``folder / RELAYED`` has it; kept up to date."""

    def __init__(self, client: HostClient, folder: Path, fence: int, offsets: dict[str, int]) -> None:
        self._client = client
        self._folder = folder
        self._fence = fence
        self._offsets = offsets
        self._most_lines = BATCH_LINES

    def drain(self) -> bool:
        """Send what is there, a bounded number of batches. Whether the server has, or does not want, every line."""
        for _ in range(MOST_BATCHES):
            offset = self._offsets.get(RELAYED_TRAINING, 0)
            lines, next_offset = next_lines(self._folder / TRAIN, offset, self._most_lines)
            if next_offset == offset:
                return True
            batch = TrainBatch(
                protocol=PROTOCOL_VERSION, fence=self._fence, offset=offset, next_offset=next_offset, lines=lines
            )
            if _GIVEN_UP in self._offsets:
                self._pass_over(batch)
            elif not self._send(batch):
                return False
            write_durably(self._folder / RELAYED, msgspec.json.encode(self._offsets))
        return False

    def _send(self, batch: TrainBatch) -> bool:
        """Whether there is reason to go on with what follows, or with less of the same."""
        try:
            answer = self._client.send_training(AttemptId(self._folder.name), batch)
        except UnreachableError:
            return False
        except Problem as problem:
            if is_of_the_moment(problem):
                return False
            return self._refused(batch, problem)
        failpoint(AFTER_ANSWER)
        self._most_lines = BATCH_LINES
        self._offsets[RELAYED_TRAINING] = answer.offset
        _note_pins(self._folder, answer.pinned)
        return True

    def _refused(self, batch: TrainBatch, problem: Problem) -> bool:
        """Of many lines one may be to blame: half of them are tried. One alone is passed over, by the server too.

        Where it takes no word of this attempt, or not even that there is nothing to take, it stands where it stood and
        would refuse whatever comes later.
        """
        if len(batch.lines) > 1 and problem.code != StaleFenceError.code:
            self._most_lines = len(batch.lines) // 2
            return True
        told = {"attempt_id": self._folder.name, "code": problem.code, "detail": problem.detail}
        if len(batch.lines) == 1 and problem.code != StaleFenceError.code:
            _log.warning("training_line_refused", **told)
            self._offsets[NUM_REFUSED] = self._offsets.get(NUM_REFUSED, 0) + 1
            return self._send(msgspec.structs.replace(batch, lines=(), num_passed_over=1))
        _log.warning("training_refused", **told)
        self._offsets[_GIVEN_UP] = batch.offset
        self._pass_over(batch)
        return True

    def _pass_over(self, batch: TrainBatch) -> None:
        """So that the supervisor may let go of it."""
        self._offsets[NUM_REFUSED] = self._offsets.get(NUM_REFUSED, 0) + len(batch.lines)
        self._offsets[RELAYED_TRAINING] = batch.next_offset


def is_of_the_moment(problem: Problem) -> bool:
    """A server in trouble, or one that asks for patience; a key that is being renewed: what was sent may be well."""
    return problem.status >= 500 or problem.status in _OF_THE_MOMENT


def next_lines(path: Path, offset: int, most_lines: int = BATCH_LINES) -> tuple[tuple[TrainLine, ...], int]:
    """Whole lines from ``offset`` on, a bounded number, and where the next begins. A torn last line waits.

    What the supervisor let go of, as relayed already, is passed over: a server that was restored asks for it again.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(BATCH_BYTES)
            if content.startswith(b"\0"):
                offset = _behind_hole(file.fileno(), offset)
                file.seek(offset)
                content = file.read(BATCH_BYTES)
    except FileNotFoundError:
        return (), offset
    lines: list[TrainLine] = []
    for raw in content.splitlines(keepends=True)[:most_lines]:
        if not raw.endswith(b"\n"):
            break
        offset += len(raw)
        try:
            line = _LINE.decode(raw.lstrip(b"\0"))
            msgspec.json.encode(line)
        except (msgspec.MsgspecError, UnicodeError, OverflowError, RecursionError):
            continue  # some JSON is no message: a surrogate, a number beyond every number
        lines.append(line)
    return tuple(lines), offset


def _behind_hole(descriptor: int, offset: int) -> int:
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError:  # nothing but the hole
        return os.lseek(descriptor, 0, os.SEEK_END)


def _note_pins(folder: Path, pinned: tuple[str, ...] | None) -> None:
    """For the supervisor, which tells its ranks. Where nobody ever pinned anything there is no file."""
    before: dict[str, Any] = files.read_json(folder / PINS) or {"generations": []}
    if pinned is not None and before["generations"] != list(pinned):
        write_durably(folder / PINS, msgspec.json.encode({"generations": pinned}))
