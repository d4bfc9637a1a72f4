"""Relay of the ranks' training messages to the control plane: each line once, whatever process dies meanwhile.

The server states its own offset in the host's file, so a batch that is sent again has no effect, and the offset stored
here is only where to begin. A line that the server refuses is skipped and counted, so that it takes no space of unsent
lines and delays no line after it.
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
from workers.host.outputs.checkpoints_seen import note_checkpoints
from workers.host.supervisor import files
from workers.host.supervisor.files import PINS, RELAYED, RELAYED_TRAINING, TRAIN

BATCH_LINES: Final = 1_000
BATCH_BYTES: Final = 512 << 10
MOST_BATCHES: Final = 64
"""Most batches of an attempt's logs, and of its training, in one turn: endless output must not delay other attempts."""
NUM_REFUSED: Final = "training_refused"
"""Key next to the offsets: how many lines of this attempt the server refused."""
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
        """Send what is there, a bounded number of batches. Returns whether the server has, or refuses, every line."""
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
        """Send a batch and return whether to continue with the next lines, or with fewer of the same."""
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
        note_checkpoints(self._folder, batch.lines, batch.next_offset)
        return True

    def _refused(self, batch: TrainBatch, problem: Problem) -> bool:
        """Handle a refusal. If one of many lines may be the cause, half of them are tried; one line alone is skipped.

        The server skips it too. If it accepts no message of this attempt, not even that there is nothing to take, its
        offset stays and it would refuse every later line.
        """
        if len(batch.lines) > 1 and problem.code != StaleFenceError.code:
            self._most_lines = len(batch.lines) // 2
            return True
        told = {"attempt_id": self._folder.name, "code": problem.code, "detail": problem.detail}
        if len(batch.lines) == 1 and problem.code != StaleFenceError.code:
            _log.warning("training_line_refused", **told)
            self._offsets[NUM_REFUSED] = self._offsets.get(NUM_REFUSED, 0) + 1
            return self._send(msgspec.structs.replace(batch, lines=(), num_skipped=1))
        _log.warning("training_refused", **told)
        self._offsets[_GIVEN_UP] = batch.offset
        self._pass_over(batch)
        return True

    def _pass_over(self, batch: TrainBatch) -> None:
        """Skip a batch, so that the supervisor may release it."""
        self._offsets[NUM_REFUSED] = self._offsets.get(NUM_REFUSED, 0) + len(batch.lines)
        self._offsets[RELAYED_TRAINING] = batch.next_offset


def is_of_the_moment(problem: Problem) -> bool:
    """Return whether a refusal is temporary: a failing or busy server, or a key that is being renewed."""
    return problem.status >= 500 or problem.status in _OF_THE_MOMENT


def next_lines(path: Path, offset: int, most_lines: int = BATCH_LINES) -> tuple[tuple[TrainLine, ...], int]:
    """Return whole lines from ``offset`` on, a bounded number, and the next offset. A torn last line waits.

    Lines that the supervisor released, because they were relayed, are skipped: a restored server requests them again.
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
    """Write the pins for the supervisor, which sends them to its ranks. Without any pin ever, there is no file."""
    before: dict[str, Any] = files.read_json(folder / PINS) or {"generations": []}
    if pinned is not None and before["generations"] != list(pinned):
        write_durably(folder / PINS, msgspec.json.encode({"generations": pinned}))
