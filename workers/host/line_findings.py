"""Findings in the output of a running attempt, read as the relay reads it: a bounded number.

They are kept next to the attempt's other records, one JSON object a line, and ``findings_relay`` sends them to the
control plane. A host worker that dies between a piece and its offset writes a finding again. They are reported facts: a
tenant's program may print anything. A line ``nccl.transport`` states the transport that NCCL chose.
"""

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from muster.domain.exit.fault_lines import Role
from watch.lines.findings import LineFinding
from watch.lines.reader import LineReaders
from watch.lines.transports import ChosenTransport
from workers.host.supervisor.files import wall_ms

FINDINGS: Final = "findings.jsonl"
MAX_FINDINGS: Final = 200
"""Most findings of one attempt that are kept: the first ones, since a root comes before its cascades."""
TRANSPORT: Final = "nccl.transport"
MAX_TRANSPORTS: Final = 8
"""Most different choices of transports of one attempt that are kept: each communicator may choose."""
LINES_A_TURN: Final = 10_000
"""Most lines in the form of a fault that are read between two calls of ``begin_turn``: heartbeats share the process."""
_log = structlog.get_logger(__name__)


class AttemptFindings:
    """The findings of one attempt. A new host worker continues at the offset that the relay has stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers = LineReaders(LINES_A_TURN)
        self._num_kept = num_findings(folder)
        self._transports: set[ChosenTransport] = set()

    def begin_turn(self) -> None:
        """Allow the work of another turn."""
        self._readers.begin_turn()

    def take(self, stream: str, content: bytes) -> None:
        """Read the next bytes of a stream."""
        if self._num_kept >= MAX_FINDINGS:
            return
        reader = self._readers.of(stream)
        found = reader.feed(content)[: MAX_FINDINGS - self._num_kept]
        for finding in found:
            if finding.role is Role.ROOT:
                _log.warning("line_finding", attempt_id=self._folder.name, **_brief(finding))
        documents = [*map(finding_document, found), *self._new_transport(reader.transport)]
        if documents:
            self._num_kept += len(documents)
            at_ms = wall_ms()
            self._write([{**each, "at_ms": at_ms} for each in documents])

    def _new_transport(self, chosen: ChosenTransport | None) -> list[dict[str, Any]]:
        if chosen is None or chosen in self._transports or len(self._transports) >= MAX_TRANSPORTS:
            return []
        self._transports.add(chosen)
        return [
            {
                "name": TRANSPORT,
                "transport": str(chosen.transport),
                "cards": list(chosen.cards),
                "has_no_rdma_card": chosen.has_no_rdma_card,
            }
        ]

    def _write(self, documents: list[dict[str, Any]]) -> None:
        """Append whole lines in one write. A disk that is full costs the findings, and never the relay."""
        lines = b"".join(msgspec.json.encode(each) + b"\n" for each in documents)
        try:
            descriptor = os.open(self._folder / FINDINGS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, lines)
            finally:
                os.close(descriptor)
        except OSError as fault:
            _log.warning("findings_not_kept", attempt_id=self._folder.name, why=str(fault))


def finding_document(finding: LineFinding) -> dict[str, Any]:
    """Return a finding as a JSON document, without the parts that its line does not state."""
    document = {
        **_brief(finding),
        "role": str(finding.role),
        "source": str(finding.source),
        "text": finding.text.replace("\0", ""),
        "host": finding.host,
        "peer": finding.peer,
        "port": finding.port,
        "hca": finding.hca,
        "details": dict(finding.details),
    }
    return {name: value for name, value in document.items() if value not in ("", 0, {}, None) or name == "rank"}


def num_findings(folder: Path) -> int:
    """Return how many findings of an attempt are kept."""
    try:
        return (folder / FINDINGS).read_bytes().count(b"\n")
    except OSError:
        return 0


def _brief(finding: LineFinding) -> dict[str, Any]:
    return {"name": finding.name, "fault": str(finding.fault), "rank": finding.rank}
