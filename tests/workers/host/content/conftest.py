"""One host that gets bundles from a real store by addresses that the real API signs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from tests.fleet_factory import Fleet, make_fleet
from tests.host_case import HostCase
from tests.patient import patient_engine
from tests.workers.host.content.stores import S3, GatedStore, bundles_host, gated_store, s3_server, served_api


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with patient_engine(database_url) as engine:
        yield engine


@pytest.fixture
def fleet(engine: Engine) -> Fleet:
    return make_fleet(UnitOfWorkFactory(engine))


@pytest.fixture
def api_url(fleet: Fleet, s3: S3) -> Iterator[str]:
    with served_api(fleet.units, s3.store) as url:
        yield url


@pytest.fixture
def host(fleet: Fleet, api_url: str, tmp_path: Path) -> Iterator[HostCase]:
    state_dir = tmp_path / "host" / "state"
    case = HostCase(fleet, state_dir, bundles=bundles_host(fleet.units, fleet.node_id, state_dir, api_url))
    yield case
    case.close()


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[GatedStore]:
    with gated_store(tmp_path) as store:
        yield store


@pytest.fixture
def gated_host(fleet: Fleet, gated: GatedStore, tmp_path: Path) -> Iterator[HostCase]:
    """A host whose store is ``gated``."""
    state_dir = tmp_path / "host" / "state"
    with served_api(fleet.units, gated.store) as url:
        case = HostCase(fleet, state_dir, bundles=bundles_host(fleet.units, fleet.node_id, state_dir, url))
        yield case
        case.close()
