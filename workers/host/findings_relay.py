"""Relay of an attempt's lines about faults (``line_findings``) to the control plane: each line once.

As with training messages the server states its own offset in the host's file. A server of release 0.1.0 has no such
route: then the relay asks again every few minutes, since the server may be of the present release by then. Once the
attempt is over, such a server gets nothing, and the attempt's folder waits for nothing.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.domain.ids import AttemptId
from muster.durable import write_durably
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import FindingsBatch
from workers.host.attempt_folder import FORGOTTEN
from workers.host.line_findings import FINDINGS
from workers.host.supervisor.files import RELAYED
from workers.host.training_relay import is_of_the_moment

RELAYED_FINDINGS: Final = "findings"
BATCH_BYTES: Final = 128 << 10
MOST_BATCHES: Final = 16
"""The file holds some hundred lines; a server that was restored asks for all of them again."""
AGAIN_S: Final = 300
"""So long after an answer that there is no such route the relay asks again."""
_GIVEN_UP: Final = "findings_given_up"
_ASK_AT: Final = "findings_ask_at"
"""Key next to the offsets: the time, in seconds since 1970, before which the server is not asked again."""
_NOT_FOUND: Final = 404
_log = structlog.get_logger(__name__)


class FindingsRelay:
    """One attempt's turn. ``offsets``: as ``folder / RELAYED`` has them; kept up to date."""

    def __init__(
        self,
        client: HostClient,
        folder: Path,
        fence: int,
        offsets: dict[str, int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._folder = folder
        self._fence = fence
        self._offsets = offsets
        self._clock = clock

    def drain(self) -> bool:
        """Send what is there. Return whether the server has, or refuses, every line."""
        for _ in range(MOST_BATCHES):
            if _GIVEN_UP in self._offsets:
                return True
            offset = self._offsets.get(RELAYED_FINDINGS, 0)
            found, next_offset = next_findings(self._folder / FINDINGS, offset)
            if next_offset == offset:
                return True
            if self._waits() or not self._send(found, offset, next_offset):
                return False
            self._store()
        return False

    def _waits(self) -> bool:
        """Return whether the server had no such route a short time ago. A clock that was set back waits no longer."""
        left_s = self._offsets.get(_ASK_AT, 0) - self._clock()
        return 0 < left_s <= AGAIN_S and not self._is_over()

    def _is_over(self) -> bool:
        return (self._folder / FORGOTTEN).exists()

    def _store(self) -> None:
        write_durably(self._folder / RELAYED, msgspec.json.encode(self._offsets))

    def _send(self, found: tuple[dict[str, Any], ...], offset: int, next_offset: int) -> bool:
        batch = FindingsBatch(
            protocol=PROTOCOL_VERSION, fence=self._fence, offset=offset, next_offset=next_offset, findings=found
        )
        try:
            answer = self._client.send_findings(AttemptId(self._folder.name), batch)
        except UnreachableError:
            return False
        except Problem as problem:
            if is_of_the_moment(problem):
                return False
            if problem.status == _NOT_FOUND and not self._is_over():
                self._offsets[_ASK_AT] = round(self._clock()) + AGAIN_S
                self._store()
                return False
            _log.info("findings_refused", attempt_id=self._folder.name, code=problem.code, detail=problem.detail)
            self._offsets[_GIVEN_UP] = offset
            return True
        self._offsets[RELAYED_FINDINGS] = answer.offset
        return True


def next_findings(path: Path, offset: int) -> tuple[tuple[dict[str, Any], ...], int]:
    """Return whole lines from ``offset`` on, and the next offset. A torn last line waits; no object is no finding."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            content = file.read(BATCH_BYTES)
    except FileNotFoundError:
        return (), offset
    found: list[dict[str, Any]] = []
    for raw in content.splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        offset += len(raw)
        try:
            document = msgspec.json.decode(raw)
        except msgspec.MsgspecError:
            continue
        if isinstance(document, dict):
            found.append(document)
    return tuple(found), offset
