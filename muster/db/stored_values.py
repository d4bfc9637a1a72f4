"""Values of enums as the database stores them, where these differ from the present ones (decision 47).

Servers of the release before read and write the former values. So this release writes them too, and reads both.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeVar

from muster.domain.job.preflight import PreflightState
from muster.domain.job.wait_reasons import WaitReason
from muster.domain.states import AllocationState

E = TypeVar("E", bound=StrEnum)

_STORED_VALUES: Final[Mapping[type[StrEnum], Mapping[str, str]]] = {
    AllocationState: {AllocationState.ASSIGNED: "HELD"},
    PreflightState: {
        PreflightState.REQUESTED: "ASKED",
        PreflightState.PASSED: "FIT",
        PreflightState.FAILED: "UNFIT",
        PreflightState.ABANDONED: "GIVEN_UP",
    },
    WaitReason: {
        WaitReason.HOLD_OF_OTHERS: "promised",
        WaitReason.HOLD: "place_held",
        WaitReason.RELEASE_NEEDED: "person",
        WaitReason.PREFLIGHT: "look",
    },
}
"""Enum → present value: stored value."""
_PRESENT_VALUES: Final[Mapping[type[StrEnum], Mapping[str, str]]] = {
    kind: {stored: present for present, stored in values.items()} for kind, values in _STORED_VALUES.items()
}


def stored_value(member: StrEnum) -> str:
    """Return the text that stands in the database for ``member``."""
    return _STORED_VALUES.get(type(member), {}).get(member, member.value)


def member_of(kind: type[E], value: str) -> E:
    """Return the member for a text from the database: a stored value or a present one.

    Raises:
        ValueError: ``value`` is neither.
    """
    return kind(_PRESENT_VALUES.get(kind, {}).get(value, value))


def present_sql(column: str, kind: type[StrEnum]) -> str:
    """Return the SQL expression of ``column`` with present values, for JSON that PostgreSQL writes itself."""
    cases = " ".join(f"WHEN '{stored}' THEN '{present}'" for present, stored in _STORED_VALUES[kind].items())
    return f"CASE {column} {cases} ELSE {column} END"
