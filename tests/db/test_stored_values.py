"""Enum values as the database stores them: the former ones, which servers of the release before read and write."""

from enum import StrEnum
from typing import Any

import pytest
from sqlalchemy import inspect, select, text, update
from sqlalchemy.orm import Session

from muster.db.stored_values import member_of, present_sql, stored_value
from muster.domain.job.preflight import PreflightState
from muster.domain.states import AllocationState, JobState

FORMER = [
    ("allocation", AllocationState.ASSIGNED, "HELD"),
    ("allocation_gpu", AllocationState.ASSIGNED, "HELD"),
    ("preflight", PreflightState.REQUESTED, "ASKED"),
    ("preflight", PreflightState.PASSED, "FIT"),
    ("preflight", PreflightState.FAILED, "UNFIT"),
    ("preflight", PreflightState.ABANDONED, "GIVEN_UP"),
]


@pytest.mark.parametrize(("factory", "member", "former"), FORMER)
def test_a_row_has_the_former_value_whichever_release_wrote_it(
    session: Session, rows: Any, factory: str, member: StrEnum, former: str
) -> None:
    row = getattr(rows, factory)()
    kind = type(row)
    name = inspect(kind).local_table.name
    session.execute(text("SET LOCAL session_replication_role = replica"))

    def store(value: StrEnum) -> None:
        session.execute(update(kind).values(state=value))

    def store_as_before(value: str) -> None:
        session.execute(text(f"UPDATE {name} SET state = '{value}'"))  # noqa: S608  # a table and a value of this test

    other = next(state for state in type(member) if state is not member)
    for is_of_the_release_before in (False, True):
        store(other)
        if is_of_the_release_before:
            store_as_before(former)
        else:
            store(member)
        assert session.scalar(text(f"SELECT state FROM {name}")) == former  # noqa: S608  # as above
        session.refresh(row)
        assert row.state is member
        assert session.scalar(select(kind.state).where(kind.state == member)) is member
        shown = text(f"SELECT {present_sql('state', type(member))} FROM {name}")  # noqa: S608  # as above
        assert session.scalar(shown) == member.value


@pytest.mark.parametrize(("member", "former"), sorted({case[1:] for case in FORMER}))
def test_present_values_are_read_too_and_others_are_refused(member: StrEnum, former: str) -> None:
    kind = type(member)
    assert stored_value(member) == former
    assert member_of(kind, former) is member_of(kind, member.value) is member
    with pytest.raises(ValueError, match="is not a valid"):
        member_of(kind, "GONE")


def test_a_value_is_translated_for_its_own_enum_alone() -> None:
    assert stored_value(JobState.HELD) == "HELD"
    assert member_of(JobState, "HELD") is JobState.HELD
