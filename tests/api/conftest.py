"""The application over a real database, a key of each role, and a client for each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from api.app import create_app
from api.dependencies import AppDependencies
from control.core.unit_of_work import UnitOfWorkFactory, utc_now
from control.secrets.key_file import FileKeys
from muster.domain.ids import KeyId, TenantId
from muster.settings import make_secret_keys_file
from tests.api.conformance import Conformance
from tests.filled_once import filled
from tests.fleet_factory import ENDS_AT_ITS_FAULT, Fleet
from tests.keyed_fleet import make_keyed_fleet
from tests.patient import patient_engine
from tests.signing_store import signing_store
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
    key_file_of_secrets: Path

    def headers(self, actor: str = "tenant_member") -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens[actor]}"}


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
def secret_keys(tmp_path: Path) -> FileKeys:
    path = tmp_path / "secrets.key"
    make_secret_keys_file(path)
    return FileKeys(path)


@pytest.fixture
def bill_keys_file(tmp_path: Path) -> Path:
    """Return a file with one key that signs bills."""
    path = tmp_path / "bills.keys"
    path.touch(0o600)
    path.write_text(f"# the key of bills\nbills-1 {'11' * 32}\n", encoding="ascii")
    return path


@pytest.fixture
def api(
    engine: Engine,
    conformance: Conformance,
    api_clock: Callable[[], datetime],
    secret_keys: FileKeys,
    bill_keys_file: Path,
    tmp_path: Path,
) -> Iterator[Api]:
    """Whatever a test is about, it fails where an answer is not what the document says."""
    units = UnitOfWorkFactory(engine, api_clock)
    world = filled(units, "keyed fleet", lambda: make_keyed_fleet(units))
    key_ids = {name: key.key.id for name, key in world.made.items()}
    dependencies = AppDependencies(
        units=units,
        secret_key=b"x" * 32,
        allowed_hosts=frozenset({"127.0.0.1"}),
        store=signing_store(tmp_path),
        secret_keys=secret_keys,
        bill_keys_file=bill_keys_file,
    )
    app = create_app(dependencies)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        client.event_hooks = {"response": [conformance]}
        yield Api(
            client, world.fleet(units), units, world.other_tenant, world.tokens, key_ids, tmp_path / "secrets.key"
        )
