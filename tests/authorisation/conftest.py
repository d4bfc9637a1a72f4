"""One database, one fleet, one application with its console, for every question of the matrix."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import create_engine
from starlette.testclient import TestClient
from starlette.types import ASGIApp

import console.app
from api.app import create_app, create_inner_app
from api.dependencies import AppDependencies
from api.permissions import declared_routes
from api.v1 import logins
from console.pages import install, sign_in
from console.pages import logins as console_logins
from console.served_wheels import ServedWheels
from console.static_files import StaticFiles
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import logins as command_logins
from muster.domain.policy.limits import LimitPolicy
from tests.api.conformance import Conformance
from tests.authorisation.callers import SECRET_KEY, Caller, every_caller
from tests.authorisation.estates import SECRET_KEYS, Estates, make_estates
from tests.authorisation.requesting import Requesting
from tests.patient import patient_engine
from tests.signing_store import signing_store
from tools.openapi_document import described

STYLE = "console.css"
MANY = 100_000
"""Of requests from one address, before which none is refused: they all come from here."""


@dataclass
class House:
    estates: Estates
    callers: list[Caller]
    requesting: Requesting


@pytest.fixture
def house(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[House]:
    for pages in (sign_in, install, console_logins, logins):
        monkeypatch.setattr(pages, "BURST", MANY)
    monkeypatch.setattr(logins, "ANSWER_BURST", MANY)
    monkeypatch.setattr(command_logins, "OPEN_OF_NETWORK", MANY)
    monkeypatch.setattr(console.app, "ServedWheels", lambda: ServedWheels(Path("/nowhere")))
    with patient_engine(database_url, pool_size=10, max_overflow=20) as engine:
        limits = LimitPolicy(joining_burst=MANY)
        store = signing_store(tmp_path)
        dependencies = AppDependencies(
            UnitOfWorkFactory(engine), SECRET_KEY, limits=limits, store=store, secret_keys=SECRET_KEYS
        )
        estates = make_estates(dependencies.units)
        app: ASGIApp = create_app(dependencies, console.app.install)
        document, files = described(), StaticFiles()
        style = files.url(STYLE).split("/")[-2]
        with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
            client.event_hooks = {"response": [Conformance(document)]}
            yield House(estates, every_caller(estates), Requesting(client, app, document, (style, STYLE)))


@pytest.fixture(scope="session")
def whole_app() -> FastAPI:
    """Its routes, console included. No database is asked."""
    units = UnitOfWorkFactory(create_engine("postgresql+psycopg://"))
    return create_inner_app(AppDependencies(units, SECRET_KEY), console.app.install)


@pytest.fixture(scope="session")
def declarations(whole_app: FastAPI) -> dict[tuple[str, str], str]:
    """(method, path) → what the code declares."""
    return {(method, path): words for method, path, words in declared_routes(whole_app)}
