"""Brings what ranks print, and what they say of their training, to the control plane: once, across crashes.

Offsets are kept beside the logs; a chunk sent twice has effect once, because the server keys it by its offset.
"""

import os
import shutil
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.domain.ids import AttemptId
from muster.durable import write_durably
from muster.wire.host import PROTOCOL_VERSION, LogBatch, LogChunk
from muster.wire.training import TrainBatch, TrainLine
from workers.host.attempt_folder import FORGOTTEN
from workers.host.supervisor.files import PINS, RELAYED, RELAYED_TRAINING, TRAIN

CHUNK_BYTES: Final = 128 << 10
BATCH_CHUNKS: Final = 16
BATCH_LINES: Final = 1_000
BATCH_BYTES: Final = 512 << 10
MOST_BATCHES: Final = 64
"""Of an attempt's logs, and of its training, in one turn: a program that writes without end keeps no other waiting."""
_REFUSED: Final = "training_refused"
_LINE: Final = msgspec.json.Decoder(TrainLine)
_log = structlog.get_logger(__name__)


class LogRelay:
    """Scans ``<state_dir>/attempts/*/logs``; a folder marked as forgotten goes once its logs are delivered."""

    def __init__(self, state_dir: Path, client: HostClient) -> None:
        self._attempts = state_dir / "attempts"
        self._client = client
        self._lock = threading.Lock()

    def drain_all(self) -> int:
        """Send what is there. Returns how many bytes went; 0 when there is nothing, or nobody to take it."""
        sent = 0
        if not self._attempts.is_dir():
            return sent
        for folder in sorted(self._attempts.iterdir()):
            sent += self.drain(folder)
        return sent

    def drain(self, folder: Path) -> int:
        """Send one attempt's unsent bytes, in a bounded number of batches, or until the server does not take them."""
        with self._lock:
            sent, is_delivered = self._drain_locked(folder)
            if is_delivered and (folder / FORGOTTEN).exists():
                shutil.rmtree(folder, ignore_errors=True)
            return sent

    def _drain_locked(self, folder: Path) -> tuple[int, bool]:
        order = _read(folder / "order.json")
        if order is None or not (folder / "logs").is_dir():  # nothing was started
            return 0, True
        offsets: dict[str, int] = _read(folder / RELAYED) or {}
        total = 0
        for _ in range(MOST_BATCHES):
            if not (chunks := _next_chunks(folder / "logs", offsets)):
                break
            if not self._send(AttemptId(folder.name), int(order["fence"]), chunks):
                return total, False
            for chunk in chunks:
                offsets[chunk.stream] = chunk.offset + len(chunk.content)
                total += len(chunk.content)
            write_durably(folder / RELAYED, msgspec.json.encode(offsets))
        has_all = self._drain_training(folder, int(order["fence"]), offsets)
        return total, has_all and not _next_chunks(folder / "logs", offsets)

    def _drain_training(self, folder: Path, fence: int, offsets: dict[str, int]) -> bool:
        """Whether the server has every whole line. It says itself where it stands, so nothing is lost or doubled."""
        for _ in range(MOST_BATCHES):
            offset = offsets.get(RELAYED_TRAINING, 0)
            lines, next_offset = next_lines(folder / TRAIN, offset)
            if next_offset == offset or _REFUSED in offsets:
                return True
            batch = TrainBatch(
                protocol=PROTOCOL_VERSION, fence=fence, offset=offset, next_offset=next_offset, lines=lines
            )
            try:
                answer = self._client.send_training(AttemptId(folder.name), batch)
                offsets[RELAYED_TRAINING] = answer.offset
                _note_pins(folder, answer.pinned)
            except UnreachableError:
                return False
            except Problem as problem:
                if problem.status >= 500 or problem.status == 429:
                    return False
                # The server stands where it stood, so whatever came later would be refused too.
                _log.warning("training_refused", attempt_id=folder.name, code=problem.code, detail=problem.detail)
                offsets[_REFUSED] = offset
            write_durably(folder / RELAYED, msgspec.json.encode(offsets))
        return False

    def _send(self, attempt_id: AttemptId, fence: int, chunks: tuple[LogChunk, ...]) -> bool:
        batch = LogBatch(protocol=PROTOCOL_VERSION, fence=fence, chunks=chunks)
        try:
            self._client.send_logs(attempt_id, batch)
        except UnreachableError:
            return False
        except Problem as problem:
            if problem.status >= 500 or problem.status == 429:
                return False
            _log.warning("logs_refused", attempt_id=attempt_id, code=problem.code, detail=problem.detail)
        return True


def _note_pins(folder: Path, pinned: tuple[str, ...] | None) -> None:
    """For the supervisor, which tells its ranks. Where nobody ever pinned anything there is no file."""
    before = _read(folder / PINS) or {"generations": []}
    if pinned is not None and before["generations"] != list(pinned):
        write_durably(folder / PINS, msgspec.json.encode({"generations": pinned}))


def next_lines(path: Path, offset: int) -> tuple[tuple[TrainLine, ...], int]:
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
    for raw in content.splitlines(keepends=True)[:BATCH_LINES]:
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


def _next_chunks(logs: Path, offsets: dict[str, int]) -> tuple[LogChunk, ...]:
    chunks: list[LogChunk] = []
    for path in sorted(logs.glob("*.log")):
        offset = offsets.get(path.stem, 0)
        with path.open("rb") as file:
            file.seek(offset)
            while len(chunks) < BATCH_CHUNKS and (content := file.read(CHUNK_BYTES)):
                chunks.append(LogChunk(stream=path.stem, offset=offset, content=content))
                offset += len(content)
    return tuple(chunks)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return None
    return document if isinstance(document, dict) else None
