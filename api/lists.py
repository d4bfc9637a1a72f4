"""Lists of the API: a page in an order, which ends in a cursor that is bound to its conditions and order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from fastapi import Query, Request

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.reading import PRINTABLE, PageOf, page_of, reading
from control.core.paging import Part, Sort, Span, TimeOrder
from control.core.unit_of_work import UnitOfWork
from control.fleet.place_conditions import HolderFilter, PlaceFilter
from control.telemetry.history import read_moment
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId, TenantId
from muster.domain.principals import Principal

T = TypeVar("T")
V = TypeVar("V")
OrderT = TypeVar("OrderT", bound=StrEnum)
Cursor = Annotated[str | None, Query(max_length=1024)]
Moment = Annotated[str | None, Query(max_length=40)]
OfTenant = Annotated[str | None, Query(max_length=64, pattern=PRINTABLE, description="Only of this tenant.")]
Racked = Annotated[str | None, Query(min_length=1, max_length=253, pattern=PRINTABLE)]
NamePart = Annotated[str | None, Query(min_length=1, max_length=253)]
ManyAPage = Annotated[int, Query(ge=1, le=1000)]
Labels = Annotated[
    list[str] | None,
    Query(max_length=10),
]


@dataclass(frozen=True, slots=True)
class Within:
    """The parameters of a list that is bounded in time, and by which it is in order."""

    since: Moment = None
    until: Moment = None
    order: Annotated[TimeOrder, Query()] = TimeOrder.NEWEST

    @property
    def span(self) -> Span:
        """The stretch of time. Raises ValidationFailedError as ``span_of`` does."""
        return span_of(self.since, self.until)

    @property
    def conditions(self) -> dict[str, Any]:
        """What a cursor of the list is bound to besides the list's other conditions."""
        return {"since": self.since, "until": self.until, "order": order_of(self.order, TimeOrder.NEWEST)}


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The page of a list that a request asks for. ``sort``: its order."""

    request: Request
    principal: Principal
    sort: Sort
    cursor: str | None
    limit: int

    def answer(
        self,
        action: str,
        bound_to: Mapping[str, Any],
        find: Callable[[UnitOfWork, Part], Sequence[T]],
        view: Callable[[T], V],
        *,
        newer: Mapping[str, Any] | None = None,
    ) -> PageOf[V]:
        """Return the page of what ``find`` returns. Raises InvalidCursorError: the cursor is of another list or order.

        ``bound_to``: the list's conditions. ``newer``: conditions that an earlier release does not know; they count
        where they are given, so that a list that is read while the control plane is upgraded continues.
        """
        filters = {**bound_to, **{name: value for name, value in (newer or {}).items() if value is not None}}
        dependencies, sort = dependencies_of(self.request), self.sort
        behind = None
        if self.cursor is not None:
            behind = read_cursor(dependencies.secret_key, filters, self.cursor, length=len(sort.keys))
        part = Part(self.limit + 1, behind, sort)
        found = reading(dependencies.units, self.principal, action, lambda unit: find(unit, part))
        return page_of(
            found, self.limit, view, lambda last: make_cursor(dependencies.secret_key, filters, sort.position_of(last))
        )


def span_of(since: str | None, until: str | None) -> Span:
    """Return the stretch of time. Raises ValidationFailedError: a text is no time."""
    return Span(read_moment("since", since), read_moment("until", until))


def place_in(rack: str | None, labels: Sequence[str] | None) -> PlaceFilter:
    """Return the conditions on a host. Raises ValidationFailedError as ``labels_in`` does."""
    values, names = labels_in(labels or [])
    return PlaceFilter(rack, values, names)


def holder_in(job_id: str | None, tenant_id: str | None, tier: str | None) -> HolderFilter:
    """Return the conditions on the job that has GPUs."""
    return HolderFilter(
        None if job_id is None else JobId(job_id), None if tenant_id is None else TenantId(tenant_id), tier
    )


def order_of(order: OrderT, usual: OrderT) -> OrderT | None:
    """Return the order for a cursor's conditions; None: the usual one, which an earlier release's cursors have."""
    return None if order is usual else order


def labels_in(texts: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return labels with values, and names alone. Raises ValidationFailedError: a name is empty, or has two values."""
    values: dict[str, str] = {}
    names: list[str] = []
    for text in texts:
        name, has_value, value = text.partition("=")
        if not name or values.get(name, value) != value:
            raise ValidationFailedError.at(
                "label", "invalid", f"{text[:80]!r}: write `name=value` or `name`, each once"
            )
        if has_value:
            values[name] = value
        else:
            names.append(name)
    return values, names
