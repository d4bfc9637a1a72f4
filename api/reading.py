"""Reads: a unit that changes nothing, parameters that are checked, pages that end in a cursor."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Query

from muster.domain.errors import NotFoundError
from muster.domain.ids import is_id
from muster.domain.principals import Principal
from muster.services.unit_of_work import UnitOfWork, UnitOfWorkFactory

T = TypeVar("T")

Limit = Annotated[int, Query(ge=1, le=200, description="how many items a page holds")]
After = Annotated[int, Query(ge=0, le=2**63 - 1, description="the position behind which to begin")]


def reading(units: UnitOfWorkFactory, principal: Principal, action: str, work: Callable[[UnitOfWork], T]) -> T:
    """``work`` in a unit that is rolled back whatever it does."""
    with units.begin(principal, action, dry_run=True, quiet=True) as unit:
        return work(unit)


def require_id(noun: str, text: str) -> str:
    """Raises ``NotFoundError`` for what cannot be an id: the same answer as for one that does not exist."""
    if not is_id(noun, text):
        raise NotFoundError
    return text
