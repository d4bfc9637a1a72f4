"""Whose fault an attempt's end was, for figures that state the infrastructure's faults and the tenant's apart."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from muster.domain.exit.causes import CAUSE_RULES, STOP_CAUSES, Budget
from muster.domain.states import Cause


class Fault(StrEnum):
    """NONE: it succeeded. MOVED: the fleet asked it to leave, as for a reclaim. LIMIT: its own time or budget was over.

    INFRASTRUCTURE, OWN: by the budget of restarts that the cause uses up (``muster.domain.exit.causes``).
    """

    NONE = "succeeded"
    OWN = "own"
    INFRASTRUCTURE = "infrastructure"
    MOVED = "moved"
    LIMIT = "limit"
    CANCELLED = "cancelled"


_BY_REQUEST: Final = frozenset(STOP_CAUSES.values())


def _fault_of(cause: Cause) -> Fault:
    budget = CAUSE_RULES[cause].budget
    if cause is Cause.SUCCEEDED:
        return Fault.NONE
    if cause is Cause.CANCELLED:
        return Fault.CANCELLED
    if budget is Budget.NONE:
        return Fault.LIMIT
    if budget is Budget.JOB:
        return Fault.OWN
    return Fault.MOVED if cause in _BY_REQUEST else Fault.INFRASTRUCTURE


FAULT_OF_CAUSE: Final[Mapping[Cause, Fault]] = MappingProxyType({cause: _fault_of(cause) for cause in Cause})


def causes_of(*faults: Fault) -> list[Cause]:
    """Return the causes of these faults, in order."""
    return [cause for cause, fault in FAULT_OF_CAUSE.items() if fault in faults]
