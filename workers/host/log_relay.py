"""Relay of the ranks' output, training messages and lines about faults to the control plane.

Offsets are stored next to the logs; a chunk sent twice has effect once, because the server keys it by its offset.
"""

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
from workers.host.attempt_folder import FORGOTTEN
from workers.host.findings_relay import FindingsRelay
from workers.host.line_findings import AttemptFindings
from workers.host.supervisor.files import RELAYED, read_json
from workers.host.training_relay import MOST_BATCHES, NUM_REFUSED, TrainingRelay, is_of_the_moment

CHUNK_BYTES: Final = 128 << 10
BATCH_CHUNKS: Final = 16
_log = structlog.get_logger(__name__)


class LogRelay:
    """Relay of ``<state_dir>/attempts/*/logs``; a folder marked as forgotten is removed after its logs are
    delivered.
    """

    def __init__(self, state_dir: Path, client: HostClient) -> None:
        self._attempts = state_dir / "attempts"
        self._client = client
        self._lock = threading.Lock()
        self._findings: dict[str, AttemptFindings] = {}

    def drain_all(self) -> int:
        """Send what is there. Returns how many bytes were sent; 0 if there is nothing, or the server does
        not answer.
        """
        sent = 0
        if not self._attempts.is_dir():
            return sent
        for folder in sorted(self._attempts.iterdir()):
            sent += self.drain(folder)
        return sent

    def drain(self, folder: Path) -> int:
        """Send one attempt's unsent bytes, in a bounded number of batches, or until the server does not accept them."""
        with self._lock:
            sent, is_delivered = self._drain_locked(folder)
            if is_delivered and (folder / FORGOTTEN).exists():
                if num_refused := (read_json(folder / RELAYED) or {}).get(NUM_REFUSED):
                    _log.warning("training_was_refused", attempt_id=folder.name, num_lines=num_refused)
                self._findings.pop(folder.name, None)
                shutil.rmtree(folder, ignore_errors=True)
            return sent

    def _drain_locked(self, folder: Path) -> tuple[int, bool]:
        order = read_json(folder / "order.json")
        if order is None or not (folder / "logs").is_dir():  # nothing was started
            return 0, True
        offsets: dict[str, int] = read_json(folder / RELAYED) or {}
        if folder.name in self._findings:
            self._findings[folder.name].begin_turn()
        total = 0
        for _ in range(MOST_BATCHES):
            if not (chunks := _next_chunks(folder / "logs", offsets)):
                break
            if not self._send(AttemptId(folder.name), int(order["fence"]), chunks):
                return total, False
            if folder.name not in self._findings and _reads_lines(order):
                self._findings[folder.name] = AttemptFindings(folder)
            findings = self._findings.get(folder.name)
            for chunk in chunks:
                if findings is not None:
                    findings.take(chunk.stream, chunk.content)
                offsets[chunk.stream] = chunk.offset + len(chunk.content)
                total += len(chunk.content)
            write_durably(folder / RELAYED, msgspec.json.encode(offsets))
        has_all = TrainingRelay(self._client, folder, int(order["fence"]), offsets).drain()
        has_all &= FindingsRelay(self._client, folder, int(order["fence"]), offsets).drain()
        return total, has_all and not _next_chunks(folder / "logs", offsets)

    def _send(self, attempt_id: AttemptId, fence: int, chunks: tuple[LogChunk, ...]) -> bool:
        batch = LogBatch(protocol=PROTOCOL_VERSION, fence=fence, chunks=chunks)
        try:
            self._client.send_logs(attempt_id, batch)
        except UnreachableError:
            return False
        except Problem as problem:
            if is_of_the_moment(problem):
                return False
            _log.warning("logs_refused", attempt_id=attempt_id, code=problem.code, detail=problem.detail)
        return True


def _reads_lines(order: dict[str, Any]) -> bool:
    """Return whether the policy in the attempt's order reads lines about faults. An older server says nothing of it."""
    return (order.get("watch") or {}).get("reads_lines") is not False


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
