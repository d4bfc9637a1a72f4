"""The export of a node: page by page, each a stretch of time, in the order in which the server received the records.

A page is one read, bounded by time and by rows. The first begins with the state at that time: the fleet for the
breaker, each GPU's standing and the existing evidence. Its first record lists what the export lacks (``NOTES``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
from sqlalchemy import func, select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.node_names import find_node
from control.health.export.acts import acts_between
from control.health.export.beginning import beginning_of
from control.health.export.readings import EVENTS_A_PAGE, Contacts, cut_before, events_between, samples_between
from control.health.judge import policy_version
from muster.db.models import Gpu, Node
from muster.domain.errors import ValidationFailedError
from muster.domain.gpu.metrics import SCHEMA
from muster.domain.principals import Permission
from muster.domain.times import to_ms, to_time
from muster.wire.health_records import Export, Record

READ: Final = declare_action("node.export")
LONGEST: Final = timedelta(days=31)
DEFAULT_SPAN: Final = timedelta(days=7)
_PAGE_GPU_S: Final = 8 * 3600
_SHORTEST_S: Final = 300.0
NOTES: Final = (
    "readings stand as they are kept: every sample, to the second and to seven digits",
    "that a reading was DCGM's is not kept, nor that a report came late: its samples count as if in time",
    "of one report the samples are judged before its events, so either may name a fault that is in both",
    "of other nodes only the size of the fleet is included, so no quarantine there fills a cap of the breaker",
    "caps by tenant, and evidence that a suspect program suspended, are not played",
)


@dataclass(frozen=True, slots=True)
class ExportedPage:
    """One page. The next one begins at ``next_ms``, which is None on the last page. All pages end at ``until_ms``."""

    records: tuple[dict[str, Any], ...]
    until_ms: int
    next_ms: int | None


def page_of_export(
    unit: UnitOfWork, text: str, *, since: datetime | None, until: datetime | None, at_ms: int | None = None
) -> ExportedPage:
    """Return a page of the node whose id or name is ``text``. ``at_ms``: end of the page before; None: the first page.

    Raises:
        NotFoundError: there is no such node.
        ValidationFailedError: no span, or one of more than ``LONGEST``.
    """
    unit.principal.require(Permission.GPU_READ)
    node = find_node(unit, text)
    until = min(unit.now if until is None else until, unit.now)
    since = until - DEFAULT_SPAN if since is None else since
    if not timedelta() < until - since <= LONGEST:
        raise ValidationFailedError.at("from", "no_span", f"must lie before `until`, at most {LONGEST.days} days")
    begin = since if at_ms is None else to_time(at_ms)
    heard, end = _stretch(unit, node, begin, until)
    first = () if at_ms is not None else (_head(unit, node, since, until), *beginning_of(unit, node, since))
    records = (*first, *(record for each in sorted(heard, key=Contacts.order) for record in each.records))
    return ExportedPage(
        tuple(msgspec.to_builtins(each) for each in records), to_ms(until), None if end >= until else to_ms(end)
    )


def _stretch(unit: UnitOfWork, node: Node, begin: datetime, until: datetime) -> tuple[Sequence[Contacts], datetime]:
    """Return the records received from ``begin`` on, and the end of that stretch: earlier where events are too many."""
    num_gpus = unit.session.scalar(select(func.count()).where(Gpu.node_id == node.id)) or 1
    end = min(begin + timedelta(seconds=max(_SHORTEST_S, min(3600.0, _PAGE_GPU_S / num_gpus))), until)
    events = events_between(unit, node, begin, end)
    if len(events) > EVENTS_A_PAGE:
        end = cut_before(events, begin)
        events = events_between(unit, node, begin, end)
    return [*events, *samples_between(unit, node, begin, end), *acts_between(unit, node, begin, end)], end


def _head(unit: UnitOfWork, node: Node, since: datetime, until: datetime) -> Record:
    return Export(
        node_id=node.id,
        node_name=node.name,
        from_ms=to_ms(since),
        until_ms=to_ms(until),
        schema=SCHEMA,
        policy_version=policy_version(unit),
        notes=NOTES,
    )
