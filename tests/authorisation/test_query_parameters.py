"""A query parameter that a route does not declare is refused by every route of the API and the console."""

from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from api.declared_query import MAX_FAULTS, MAX_NAME, StrictRoute, unknown_parameters
from muster.domain.principals import Role
from tests.authorisation.conftest import House
from tests.authorisation.routes import HOLDERS, PUBLIC, SIGNED_IN, read_table


def test_every_route_of_the_api_and_the_console_is_a_strict_one(whole_app: FastAPI) -> None:
    """So none can be added that ignores a filter: the routers know no other way to a route."""
    routes = iter_route_contexts(whole_app.routes)
    others = [each.path for each in routes if not isinstance(each.original_route, StrictRoute)]
    assert others == []


@pytest.mark.timeout(600)
def test_each_route_refuses_a_parameter_that_it_does_not_declare_and_names_it(house: House) -> None:
    """Each row of the table is asked by the first caller that may call it."""
    faults, num_asked = [], 0
    for row in read_table():
        holders = set(Role) if row.may_call in {PUBLIC, SIGNED_IN} else HOLDERS[row.may_call]
        may_call = [each for each in house.callers if row.knows(each) and each.role in holders]
        strange = replace(row, requested=f"{row.requested}{'&' if '?' in row.requested else '?'}stauts=HEALTHY")
        answer = house.requesting.ask(strange, may_call[0], "own")
        num_asked += 1
        if answer.status != 422 or b"stauts" not in answer.content:
            faults.append(f"{row.method} {strange.requested}: {answer.status}: {answer.content[-200:]!r}")
    assert faults == []
    assert num_asked == len(read_table())


def test_one_whose_key_opens_nothing_learns_nothing_of_the_parameters(house: House) -> None:
    row = next(each for each in read_table() if each.requested == "/v1/gpus")
    strange = replace(row, requested="/v1/gpus?status=HEALTHY")
    statuses = {each.name: house.requesting.ask(strange, each, "own").status for each in house.callers}
    assert statuses["anonymous"] == 401
    assert statuses["member of A"] == 403
    assert statuses["operator"] == 422


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (b"status=x", "there is no such parameter; did you mean standing? this address accepts limit, standing"),
        (b"standings=x", "there is no such parameter; did you mean standing? this address accepts limit, standing"),
        (b"zzz", "there is no such parameter; this address accepts limit, standing"),
        (b"=1", "there is no such parameter; this address accepts limit, standing"),
        (b"%F0%9F%8E%81=1&limit=1", "there is no such parameter; this address accepts limit, standing"),
    ],
)
def test_the_refusal_names_the_nearest_parameter_and_all_that_are_accepted(query: bytes, words: str) -> None:
    assert [fault.detail for fault in unknown_parameters(query, ("limit", "standing"))] == [words]


def test_what_is_declared_or_empty_is_no_fault_and_nothing_is_accepted_where_nothing_is_declared() -> None:
    assert unknown_parameters(b"limit=1&limit=2&standing=", ("limit", "standing")) == ()
    (fault,) = unknown_parameters(b"a=1&a=2", ())
    assert (fault.pointer, fault.detail) == ("query/a", "there is no such parameter; this address accepts none")


def test_a_request_of_many_strange_parameters_has_a_short_refusal() -> None:
    query = "&".join(f"{number}{'x' * 1000}=1" for number in range(500)).encode()
    faults = unknown_parameters(query, ("limit",))
    assert len(faults) == MAX_FAULTS + 1
    assert {len(fault.pointer) for fault in faults[:-1]} == {len("query/") + MAX_NAME}
    assert (faults[-1].pointer, faults[-1].detail) == ("query", "and 492 more that this address does not accept")
