"""Lines that state that memory was short: of a GPU, or of a host."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork
from control.core.visibility import may_see
from muster.db.models import Attempt, LineFindingRow, Node
from muster.domain.errors import NotFoundError
from muster.domain.exit.fault_lines import FAULT_LINES, Fault
from muster.domain.ids import AttemptId, NodeId
from muster.domain.principals import Permission

MEMORY_PATTERNS: Final = tuple(row.name for row in FAULT_LINES if row.fault is Fault.MEMORY)
LINES_SHOWN: Final = 50


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line, and how often it came. ``rank``: None: the host's kernel printed it."""

    rank: int | None
    node_id: NodeId
    node_name: str
    pattern: str
    text: str
    count: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class MemoryLines:
    """``lines``: the newest ``LINES_SHOWN`` first. ``num_lines``: of all lines, with repeats.

    ``ranks``: that printed any line, by number. ``has_more_ranks``: a limit left some out.
    """

    lines: Sequence[MemoryLine]
    num_lines: int
    ranks: Sequence[int]
    has_more_ranks: bool


def memory_lines_of(unit: UnitOfWork, attempt_id: AttemptId, most_ranks: int) -> MemoryLines:
    """Return the lines about short memory of a visible attempt, and at most so many ranks that printed one.

    Raises:
        NotFoundError: there is no such attempt, or the caller may not see it.
    """
    unit.principal.require(Permission.LOG_READ)  # lines are a tenant's as its output is
    tenant_id = unit.session.scalar(select(Attempt.tenant_id).where(Attempt.id == attempt_id))
    if tenant_id is None or not may_see(unit.principal, tenant_id):
        raise NotFoundError
    own = (LineFindingRow.attempt_id == attempt_id, LineFindingRow.pattern.in_(MEMORY_PATTERNS))
    row = LineFindingRow
    columns = (row.rank, row.node_id, Node.name, row.pattern, row.text, row.count, row.last_at)
    newest = select(*columns).join(Node, Node.id == row.node_id).where(*own)
    newest = newest.order_by(row.last_at.desc(), row.node_id, row.key).limit(LINES_SHOWN)
    num_lines = unit.session.scalar(select(func.sum(row.count)).where(*own)) or 0
    named = select(row.rank).where(*own, row.rank.is_not(None)).distinct().order_by(row.rank).limit(most_ranks + 1)
    ranks = [rank for rank in unit.session.scalars(named) if rank is not None]
    lines = [MemoryLine(*found) for found in unit.session.execute(newest)]
    return MemoryLines(lines, int(num_lines), ranks[:most_ranks], len(ranks) > most_ranks)
