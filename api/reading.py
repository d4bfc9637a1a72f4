"""Reads: a unit that changes nothing, parameters that are checked, pages that end in a cursor."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final, Generic, TypedDict, TypeVar

from fastapi import Query

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory
from control.tenants.planning import planning
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, is_id
from muster.domain.principals import Principal

T = TypeVar("T")
V = TypeVar("V")
PRINTABLE: Final = r"^[!-~]+$"
"""Characters of a name in an address: ASCII without blanks."""
STORABLE: Final = r"^[^\x00]*$"
"""Characters of a text: PostgreSQL has none with a zero byte."""
_GPU_UUID: Final = re.compile(r"[!-~]{1,128}")
_NODE_NAME: Final = re.compile(r"[!-~]{1,253}")
_VERSION: Final = re.compile(r"[0-9]{1,10}")
_LARGEST_VERSION: Final = 2**31 - 1

Limit = Annotated[int, Query(ge=1, le=200)]
NodeNamed = Annotated[str | None, Query(min_length=1, max_length=253, pattern=PRINTABLE)]
After = Annotated[int, Query(ge=0, le=2**63 - 1)]


def reading(
    units: UnitOfWorkFactory,
    principal: Principal,
    action: str,
    work: Callable[[UnitOfWork], T],
    *,
    is_one_snapshot: bool = False,
) -> T:
    """Return the result of ``work`` in a unit that is rolled back in any case.

    ``is_one_snapshot``: its statements see one state, so that sums of several agree.
    """
    with units.begin(principal, action, dry_run=True, quiet=True, is_one_snapshot=is_one_snapshot) as unit:
        return work(unit)


class PageOf(TypedDict, Generic[V]):
    """A page like ``documents.Page``, of any kind of item."""

    items: list[V]
    next_cursor: str | None


def reading_plan(units: UnitOfWorkFactory, principal: Principal, action: str, work: Callable[[UnitOfWork], T]) -> T:
    """Return the result of ``work``, which plans, as ``reading`` does. Its CPU time counts for the tenant.

    Raises:
        TenantLimitError: plans and dry runs of the principal's tenant took their share of the CPU.
    """
    with planning(units, principal):
        return reading(units, principal, action, work)


def page_of(found: Sequence[T], limit: int, view: Callable[[T], V], cursor_behind: Callable[[T], str]) -> PageOf[V]:
    """Return a page of at most ``limit``. ``found`` holds one more where there is a next page."""
    page = found[:limit]
    next_cursor = cursor_behind(page[-1]) if len(found) > limit else None
    return {"items": [view(each) for each in page], "next_cursor": next_cursor}


def require_gpu_uuid(text: str) -> GpuUuid:
    """Return the UUID as ``require_id`` does an id; a GPU's UUID is the driver's."""
    found = gpu_uuid_in(text)
    if found is None:
        raise NotFoundError
    return found


def gpu_uuid_in(text: str) -> GpuUuid | None:
    """Return the UUID, or None for a text that cannot be one and that no row has. For a query before any refusal."""
    return GpuUuid(text) if _GPU_UUID.fullmatch(text) else None


def require_node(text: str) -> str:
    """Return the text as ``require_id`` does; a path names a node by its id or its name."""
    found = node_in(text)
    if found is None:
        raise NotFoundError
    return found


def node_in(text: str) -> str | None:
    """Return the text, or None as ``gpu_uuid_in`` does."""
    return text if _NODE_NAME.fullmatch(text) else None


def id_in(noun: str, text: str) -> str | None:
    """Return the id, or None as ``gpu_uuid_in`` does."""
    return text if is_id(noun, text) else None


def require_id(noun: str, text: str) -> str:
    """Return the id. Raises ``NotFoundError`` for a text that is no id: the same answer as for a missing one."""
    if not is_id(noun, text):
        raise NotFoundError
    return text


def require_version(text: str) -> int:
    """Return the number of a document's version as ``require_id`` does an id."""
    if not _VERSION.fullmatch(text) or int(text) > _LARGEST_VERSION:
        raise NotFoundError
    return int(text)
