"""The declarations of the code against the table of the callers of each route: no change of one goes unnoticed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from api.permissions import _DECLARES, UndeclaredRouteError, declared_routes
from api.refusals import documented_path
from muster.domain.principals import ROLE_PERMISSIONS, Permission
from tests.authorisation.routes import HOLDERS, PAGES, PUBLIC, SIGNED_IN, read_table
from tools.openapi_document import described

Declarations = Mapping[tuple[str, str], str]
OTHERS = (SIGNED_IN, "public: for an unknown reason", str(Permission.EVENT_READ), str(Permission.SYSTEM_RUN))


def faults_of(declarations: Declarations) -> list[str]:
    """Return the differences of the declarations and the table as text."""
    expected = {(row.method, row.path): row.may_call for row in read_table()}
    declared = {route: PUBLIC if words.startswith(f"{PUBLIC}:") else words for route, words in declarations.items()}
    missing = [f"{' '.join(route)}: add it to routes.txt" for route in declared.keys() - expected.keys()]
    gone = [f"{' '.join(route)}: routes.txt has it, the code has not" for route in expected.keys() - declared.keys()]
    changed = [
        f"{' '.join(route)}: declares {declared[route]}, where routes.txt says {expected[route]}"
        for route in declared.keys() & expected.keys()
        if declared[route] != expected[route]
    ]
    return sorted([*missing, *gone, *changed])


def test_each_route_declares_what_the_table_states_and_each_stands_in_it(declarations: Declarations) -> None:
    assert faults_of(declarations) == []


def test_a_route_stands_under_one_permission_however_often_it_is_queried() -> None:
    rows: dict[tuple[str, str], set[str]] = {}
    for row in read_table():
        rows.setdefault((row.method, row.path), set()).add(row.may_call)
    assert {route: words for route, words in rows.items() if len(words) > 1} == {}


def test_each_role_holds_what_the_table_states_and_no_more() -> None:
    held = {str(each): {role for role, holds in ROLE_PERMISSIONS.items() if each in holds} for each in Permission}
    assert held == HOLDERS


def test_the_document_names_every_operation_with_its_declaration(declarations: Declarations) -> None:
    documented = {
        (method.upper(), path): operation["x-permission"]
        for path, operations in described()["paths"].items()
        for method, operation in operations.items()
    }
    assert documented == {
        (method, documented_path(path)): words
        for (method, path), words in declarations.items()
        if not path.startswith(PAGES)
    }


def test_a_declaration_that_is_removed_stops_the_start_and_another_one_is_noticed(whole_app: FastAPI) -> None:
    """Of every single route, in the running code: none is watched over by the others alone."""
    for path, check in _declaring_checks(whole_app):
        with _declaring(check, None), pytest.raises(UndeclaredRouteError, match=r"declare requires"):
            tuple(declared_routes(whole_app))
        own = getattr(check, _DECLARES)
        for words in OTHERS:
            if words.split(": ")[0] != own.split(": ")[0]:
                with _declaring(check, words):
                    found = faults_of({(method, where): said for method, where, said in declared_routes(whole_app)})
                assert any(f" {path}: declares" in fault for fault in found), (path, words)


def _declaring_checks(app: FastAPI) -> Iterator[tuple[str, Any]]:
    for route in iter_route_contexts(app.routes):
        dependant = getattr(route, "dependant", None)
        assert isinstance(dependant, Dependant)
        check = next(_checks_in(dependant))
        yield str(route.path), check


def _checks_in(dependant: Dependant) -> Iterator[Any]:
    if hasattr(dependant.call, _DECLARES):
        yield dependant.call
    for inner in dependant.dependencies:
        yield from _checks_in(inner)


@contextmanager
def _declaring(check: Any, words: str | None) -> Iterator[None]:
    own = getattr(check, _DECLARES)
    if words is None:
        delattr(check, _DECLARES)
    else:
        setattr(check, _DECLARES, words)
    try:
        yield
    finally:
        setattr(check, _DECLARES, own)
