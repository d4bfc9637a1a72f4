"""The console in the API's application over a real database, and a browser signed in as each role."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape

import httpx
import pytest
from argon2 import PasswordHasher
from sqlalchemy import Engine
from starlette.testclient import TestClient

import console.app
from api.app import create_app
from api.dependencies import AppDependencies
from api.figures import DatabaseFigures
from console.session import COOKIE
from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys, persons, sessions
from control.tenants.sessions import sign_in_by_key
from muster.domain.ids import TenantId
from tests.control.secrets.secret_case import KeyService
from tests.filled_once import filled
from tests.fleet_factory import Fleet
from tests.keyed_fleet import KeyedFleet, make_keyed_fleet
from tests.patient import patient_engine


@dataclass
class Console:
    """``cookies``: by role's name, and ``other_tenant``."""

    client: TestClient
    fleet: Fleet
    units: UnitOfWorkFactory
    other_tenant: TenantId
    cookies: dict[str, str] = field(default_factory=dict)
    made_keys: dict[str, keys.NewKey] = field(default_factory=dict)
    secret_keys: KeyService = field(default_factory=KeyService)

    def get(self, path: str, actor: str | None = "operator", **headers: str) -> httpx.Response:
        answer: httpx.Response = self.client.get(path, headers=self._headers(actor, headers), follow_redirects=False)
        return answer

    def text(self, path: str, actor: str | None = "operator", **headers: str) -> str:
        """What a person reads there: no tags, single spaces."""
        return words_of(self.get(path, actor, **headers).text)

    def post(
        self, path: str, actor: str | None = "operator", *, csrf: str | None = None, **fields: str
    ) -> httpx.Response:
        """A form of a page of this session, unless ``csrf`` says otherwise."""
        token = self.csrf(actor) if csrf is None else csrf
        data = {"csrf": token, **fields}
        answer: httpx.Response = self.client.post(
            path, data=data, headers=self._headers(actor, {}), follow_redirects=False
        )
        return answer

    def csrf(self, actor: str | None = "operator") -> str:
        found = re.search(r'<meta name="csrf" content="([0-9a-f]+)">', self.get("/console/find", actor).text)
        return "" if found is None else found.group(1)

    def _headers(self, actor: str | None, headers: dict[str, str]) -> dict[str, str]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return named if actor is None else {**named, "Cookie": f"{COOKIE}={self.cookies[actor]}"}


def words_of(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", page)))


@pytest.fixture(autouse=True)
def _quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hash passwords with the least parameters: with production's each hash takes a tenth of a second and 64 MiB."""
    quick = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    monkeypatch.setattr(persons, "HASHER", quick)
    monkeypatch.setattr(sessions, "HASHER", quick)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with patient_engine(database_url, pool_size=10, max_overflow=20) as engine:
        yield engine


@pytest.fixture
def seen(engine: Engine) -> Iterator[Console]:
    units = UnitOfWorkFactory(engine)
    found, cookies = filled(units, "keyed fleet with sessions", lambda: _signed_in(units))
    service = KeyService()
    dependencies = AppDependencies(units=units, secret_key=b"x" * 32, secret_keys=service)
    dependencies.registry.register(DatabaseFigures(units))
    app = create_app(dependencies, console.app.install)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield Console(client, found.fleet(units), units, found.other_tenant, dict(cookies), dict(found.made), service)


def _signed_in(units: UnitOfWorkFactory) -> tuple[KeyedFleet, dict[str, str]]:
    """Return the fleet, and the cookie of a session by each key of a person."""
    made = make_keyed_fleet(units)
    tokens = {name: token for name, token in made.tokens.items() if name != "node"}
    return made, {name: sign_in_by_key(units, token, address="127.0.0.1").text for name, token in tokens.items()}
