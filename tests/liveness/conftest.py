"""A database behind a proxy that can go silent, and limits under which that shows at once."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from muster.db import engine as engines
from muster.db import own_connection, pool_checks
from muster.db.engine import SessionLimits, make_engine
from tests.liveness.silent_proxy import SilentProxy, silent_proxy
from tests.patient import patient_engine

SILENT_S = 0.3


@pytest.fixture
def proxy(database_url: str) -> Iterator[SilentProxy]:
    with silent_proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    with patient_engine(database_url) as engine:
        yield engine


@pytest.fixture
def behind_proxy(proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(engines, "SILENT_S", SILENT_S)
    monkeypatch.setattr(own_connection, "PATIENCE_S", SILENT_S)
    monkeypatch.setattr(pool_checks, "PING_S", SILENT_S)
    engine = make_engine(proxy.url, limits=SessionLimits(statement_ms=200, lock_ms=100))
    yield engine
    engine.dispose()
