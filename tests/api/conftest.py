"""The application over a real database, a key of each role, and a client for each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from api.app import create_app
from api.dependencies import AppDependencies
from control.core.unit_of_work import UnitOfWorkFactory, utc_now
from control.tenants import keys, tenants
from muster.domain.ids import KeyId, NodeId, TenantId
from muster.domain.principals import Role
from tests.api.conformance import Conformance
from tests.filled_once import filled
from tests.fleet_factory import ENDS_AT_ITS_FAULT, OPERATOR, Fleet, fleet_of, make_fleet
from tests.patient import patient_engine
from tools.openapi_document import described

GOOD_JOB = {"name": "train", "program": {"script": "/srv/train.py"}, **ENDS_AT_ITS_FAULT}


@dataclass(frozen=True)
class Api:
    client: TestClient
    fleet: Fleet
    units: UnitOfWorkFactory
    other_tenant: TenantId
    tokens: dict[str, str]
    key_ids: dict[str, KeyId]

    def headers(self, actor: str = "tenant_member") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[actor]}"}


@dataclass(frozen=True)
class World:
    """A fleet, another tenant, and the keys by the name of their role."""

    tenant_id: TenantId
    node_id: NodeId
    other_tenant: TenantId
    tokens: Mapping[str, str]
    key_ids: Mapping[str, KeyId]


def _fill(units: UnitOfWorkFactory) -> World:
    fleet = make_fleet(units)
    with units.begin(OPERATOR, tenants.CREATE) as unit:
        other = tenants.create(unit, name="other").id
    made = _make_keys(units, fleet, other)
    tokens = {name: key.token.text for name, key in made.items()}
    key_ids = {name: key.key.id for name, key in made.items()}
    return World(fleet.tenant_id, fleet.node_id, other, tokens, key_ids)


def _make_keys(units: UnitOfWorkFactory, fleet: Fleet, other: TenantId) -> dict[str, keys.NewKey]:
    wanted: dict[str, tuple[Role, TenantId | None, NodeId | None]] = {
        "tenant_member": (Role.TENANT_MEMBER, fleet.tenant_id, None),
        "tenant_admin": (Role.TENANT_ADMIN, fleet.tenant_id, None),
        "other_tenant": (Role.TENANT_ADMIN, other, None),
        "operator": (Role.OPERATOR, None, None),
        "auditor": (Role.AUDITOR, None, None),
        "node": (Role.NODE, None, fleet.node_id),
    }
    with units.begin(OPERATOR, keys.CREATE) as unit:
        return {
            name: keys.create(unit, name=f"key-{role.replace('_', '-')}", role=role, tenant_id=tenant, node_id=node)
            for name, (role, tenant, node) in wanted.items()
        }


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with patient_engine(database_url, pool_size=20, max_overflow=20) as engine:
        yield engine


@pytest.fixture(scope="session")
def conformance() -> Conformance:
    """What the API says of itself, to hold answers against."""
    return Conformance(described())


@pytest.fixture
def api_clock() -> Callable[[], datetime]:
    """Return the API's clock; a module whose tests look at the time has its own."""
    return utc_now


@pytest.fixture
def api(engine: Engine, conformance: Conformance, api_clock: Callable[[], datetime]) -> Iterator[Api]:
    """Whatever a test is about, it fails where an answer is not what the document says."""
    units = UnitOfWorkFactory(engine, api_clock)
    world = filled(units, "world of the API", lambda: _fill(units))
    app = create_app(AppDependencies(units=units, secret_key=b"x" * 32, allowed_hosts=frozenset({"127.0.0.1"})))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.event_hooks = {"response": [conformance]}
        fleet = fleet_of(units, world.tenant_id, world.node_id)
        yield Api(client, fleet, units, world.other_tenant, dict(world.tokens), dict(world.key_ids))
