"""Lines about faults in the output of running jobs, as a host's relay sends them, and the transport that NCCL chose.

They are reported facts: a program may print any line in the form of NCCL. So the role of a line is that of our own
table, a rank is one of the host's own, repeats are folded, and the rows of one host are bounded. A line that cannot be
read, or that a later release's table has, is skipped.
"""

from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.attempts.allowance import is_over
from control.attempts.attempts import LoadedAttempt
from control.attempts.own_parts import own_part
from control.attempts.ranks import ranks_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.policy.policies import active_policy
from muster.db.models import AttemptHost, AttemptTransport, LineFindingRow, Node, TrainingHost
from muster.domain.exit.fault_lines import FAULT_LINES, Role
from muster.domain.ids import AttemptId
from muster.domain.principals import Permission
from muster.domain.strict import require_clean_document
from muster.domain.times import to_time
from muster.wire.training import FindingsAnswer, FindingsBatch, LineFindingMessage
from watch.lines.findings import OF_A_PROGRAM
from watch.lines.transports import ChosenTransport, Transport, rdma_warning

RECORD: Final = declare_action("findings.record")
MOST_OF_A_HOST: Final = 200
"""Most rows of one host of an attempt. Beyond them only repeats of known lines are counted."""
MOST_REPEATS: Final = 1_000_000
TRANSPORT: Final = "nccl.transport"
RDMA_UNUSED: Final = "attempt.rdma_unused"
_ROLE_OF: Final = {**{row.name: row.role for row in FAULT_LINES}, OF_A_PROGRAM: Role.ROOT}


def take(unit: UnitOfWork, attempt_id: AttemptId, batch: FindingsBatch) -> FindingsAnswer:
    """Take a host's findings from where the server stands. Begin the unit ``quiet``: most leave no event.

    Raises:
        UpgradeRequiredError: another protocol.
        StaleFenceError: the fence is not this attempt's, or the host holds no part of it.
    """
    unit.principal.require(Permission.HOST_REPORT)
    loaded, part = own_part(unit, attempt_id, batch.fence, batch.protocol)
    if is_over(loaded.attempt.ended_at, unit.now, active_policy(unit.session).limits.attempt):
        return FindingsAnswer(offset=batch.next_offset)
    node_id = part.node_id
    host = unit.session.get(TrainingHost, (attempt_id, node_id)) or TrainingHost(attempt_id=attempt_id, node_id=node_id)
    if batch.offset != host.findings_offset or batch.next_offset < batch.offset:
        return FindingsAnswer(offset=host.findings_offset)
    unit.session.add(host)
    taker = _Taker(unit, loaded, part)
    for document in batch.findings:
        if (message := _read(document)) is not None:
            taker.take(message)
    host.findings_offset = batch.next_offset
    return FindingsAnswer(offset=host.findings_offset)


def _read(document: dict[str, Any]) -> LineFindingMessage | None:
    try:
        require_clean_document(document)
        return msgspec.convert(document, LineFindingMessage)
    except (ValueError, RecursionError, msgspec.ValidationError):
        return None


class _Taker:
    """One batch of a host's findings."""

    def __init__(self, unit: UnitOfWork, loaded: LoadedAttempt, part: AttemptHost) -> None:
        self._unit = unit
        self._loaded = loaded
        self._part = part
        self._own = ranks_of(loaded, part)
        own_rows = select(LineFindingRow).where(
            LineFindingRow.attempt_id == loaded.attempt.id, LineFindingRow.node_id == part.node_id
        )
        self._rows = {row.key: row for row in unit.session.scalars(own_rows)}

    def take(self, message: LineFindingMessage) -> None:
        if message.name == TRANSPORT:
            self._note_transport(message)
        elif message.name in _ROLE_OF:
            self._note_line(message)

    def _note_line(self, message: LineFindingMessage) -> None:
        rank = message.rank if message.rank in self._own else None
        parts = (message.name, rank, message.host, message.peer, message.port, message.hca)
        key = "/".join("" if each is None else str(each) for each in parts)
        at = to_time(message.at_ms)
        row = self._rows.get(key)
        if row is not None:
            row.count = min(row.count + 1, MOST_REPEATS)
            row.first_at, row.last_at = min(row.first_at, at), max(row.last_at, at)
            return
        if len(self._rows) >= MOST_OF_A_HOST:
            return
        row = LineFindingRow(
            attempt_id=self._loaded.attempt.id,
            node_id=self._part.node_id,
            key=key,
            pattern=message.name,
            role=_ROLE_OF[message.name],
            rank=rank,
            host=message.host,
            peer=message.peer,
            port=message.port,
            hca=message.hca,
            text=message.text,
            count=1,
            first_at=at,
            last_at=at,
            received_at=self._unit.now,
        )
        self._unit.session.add(row)
        self._rows[key] = row

    def _note_transport(self, message: LineFindingMessage) -> None:
        """Store the host's choice. RDMA is expected where a job of several hosts runs on hosts with RDMA ports."""
        if message.transport not in set(Transport):
            return
        chosen = ChosenTransport(Transport(message.transport), message.cards, message.has_no_rdma_card)
        node = self._unit.session.get_one(Node, self._part.node_id)
        is_expected = len(self._loaded.hosts) > 1 and bool(node.rdma_ports)
        warning = rdma_warning(chosen, is_rdma_expected=is_expected)
        if warning is not None:
            self._warn_once(node, warning)
        row = self._unit.session.get(AttemptTransport, (self._loaded.attempt.id, self._part.node_id))
        if row is None:
            row = AttemptTransport(
                attempt_id=self._loaded.attempt.id,
                node_id=self._part.node_id,
                transport=message.transport,
                cards=list(message.cards),
                warning=warning,
                received_at=self._unit.now,
            )
            self._unit.session.add(row)
        else:
            row.transport, row.cards, row.warning = message.transport, list(message.cards), warning or row.warning
        self._unit.session.flush()

    def _warn_once(self, node: Node, warning: str) -> None:
        """Leave the one event of the attempt: all hosts of a job usually choose alike."""
        warned = select(AttemptTransport.node_id).where(
            AttemptTransport.attempt_id == self._loaded.attempt.id, AttemptTransport.warning.is_not(None)
        )
        if self._unit.session.scalar(warned.limit(1)) is not None:
            return
        payload = {"job_id": self._loaded.job.id, "node_id": node.id, "reason": warning}
        self._unit.emit(
            RDMA_UNUSED, "attempt", self._loaded.attempt.id, tenant_id=self._loaded.job.tenant_id, payload=payload
        )
