"""Reads: a unit that changes nothing, parameters that are checked, pages that end in a cursor."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Generic, TypedDict, TypeVar

from fastapi import Query

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, is_id
from muster.domain.principals import Principal

T = TypeVar("T")
V = TypeVar("V")
PRINTABLE: Final = r"^[!-~]+$"
"""What a name in an address is written in: ASCII without blanks."""
_GPU_UUID: Final = re.compile(r"[!-~]{1,128}")
_NODE_NAME: Final = re.compile(r"[!-~]{1,253}")

Limit = Annotated[int, Query(ge=1, le=200, description="how many items a page holds")]
NodeNamed = Annotated[
    str | None, Query(min_length=1, max_length=253, pattern=PRINTABLE, description="a node's id or its name")
]
After = Annotated[int, Query(ge=0, le=2**63 - 1, description="the position behind which to begin")]


def reading(units: UnitOfWorkFactory, principal: Principal, action: str, work: Callable[[UnitOfWork], T]) -> T:
    """``work`` in a unit that is rolled back whatever it does."""
    with units.begin(principal, action, dry_run=True, quiet=True) as unit:
        return work(unit)


class PageOf(TypedDict, Generic[V]):
    """As ``documents.Page``, of any kind of item."""

    items: list[V]
    next_cursor: str | None


def page_of(found: Sequence[T], limit: int, view: Callable[[T], V], cursor_behind: Callable[[T], str]) -> PageOf[V]:
    """A page of at most ``limit``. ``found`` holds one more where there is a next page."""
    page = found[:limit]
    next_cursor = cursor_behind(page[-1]) if len(found) > limit else None
    return {"items": [view(each) for each in page], "next_cursor": next_cursor}


def require_gpu_uuid(text: str) -> GpuUuid:
    """As ``require_id``; a GPU's UUID is the driver's word."""
    found = gpu_uuid_in(text)
    if found is None:
        raise NotFoundError
    return found


def gpu_uuid_in(text: str) -> GpuUuid | None:
    """None for what cannot be one, which no row has: for a question that is asked before anything is refused."""
    return GpuUuid(text) if _GPU_UUID.fullmatch(text) else None


def require_node(text: str) -> str:
    """As ``require_id``; a path names a node by its id or its name."""
    found = node_in(text)
    if found is None:
        raise NotFoundError
    return found


def node_in(text: str) -> str | None:
    """As ``gpu_uuid_in``."""
    return text if _NODE_NAME.fullmatch(text) else None


def id_in(noun: str, text: str) -> str | None:
    """As ``gpu_uuid_in``."""
    return text if is_id(noun, text) else None


def require_id(noun: str, text: str) -> str:
    """Raises ``NotFoundError`` for what cannot be an id: the same answer as for one that does not exist."""
    if not is_id(noun, text):
        raise NotFoundError
    return text
