"""Guarantees as a plan saw them, compared at the commit of what it takes.

A plan keeps the unused guarantees of tiers without notice free. A guarantee that is set, a tenant that is moved or a
policy that is activated after its snapshot may need GPUs that it gives to others. Such a decision is lost, and the next
cycle plans again. A change that is committed after the placement finds the GPUs in use, and reports them as lent.
"""

from typing import Final, NewType

from sqlalchemy.orm import Session

from muster.db.pipeline.batched import query_together
from muster.db.queries.tenants import GUARANTEES, LOCK_GUARANTEES

Guarantees = NewType("Guarantees", str)
"""A text that differs where guarantees, the tree of tenants or the policy do."""
CHANGED: Final = "guarantees or the policy have changed since the plan was made"


def guarantees_now(session: Session) -> Guarantees:
    """Return the guarantees; read them before the snapshot of a plan."""
    [[(found,)]] = query_together(session, GUARANTEES)
    return Guarantees(found)


def locked_guarantees(session: Session) -> Guarantees:
    """Return the guarantees, which no other transaction changes until this one ends. Call it before any row's lock."""
    _, [(found,)] = query_together(session, LOCK_GUARANTEES, GUARANTEES)
    return Guarantees(found)
