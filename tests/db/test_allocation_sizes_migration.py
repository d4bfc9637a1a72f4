"""An allocation that is in use at the upgrade is counted once; what was released before is left as it stands."""

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine

BEFORE, AFTER = "20261123_1901", "20261124_1920"
HELD = """
SET LOCAL session_replication_role = replica; -- the allocations alone, without jobs, attempts and GPUs
INSERT INTO allocations (id, attempt_id, job_id, tenant_id, tier, state, created_at, released_at) VALUES
    ('alc_held', 'att_1', 'job_1', 'ten_1', 'spot', 'HELD', now(), NULL),
    ('alc_cleaning', 'att_2', 'job_2', 'ten_1', 'spot', 'CLEANING', now(), NULL),
    ('alc_released', 'att_3', 'job_3', 'ten_1', 'spot', 'RELEASED', now(), now());
INSERT INTO allocation_gpus (allocation_id, gpu_uuid, node_id, node_rank, local_index, state) VALUES
    ('alc_held', 'GPU-0', 'node_a', 0, 0, 'HELD'), ('alc_held', 'GPU-1', 'node_a', 0, 1, 'HELD'),
    ('alc_cleaning', 'GPU-2', 'node_a', 0, 0, 'RELEASED'), ('alc_released', 'GPU-3', 'node_a', 0, 0, 'RELEASED');
"""
SIZES = "SELECT id, num_gpus FROM allocations ORDER BY id"


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[Engine]:
    name = f"sizes_{uuid.uuid4().hex}"
    postgres_server.create_database(name)
    engine = make_engine(postgres_server.url(name))
    yield engine
    engine.dispose()
    postgres_server.drop_database(name)


def test_what_is_on_hold_gets_its_size_which_never_changes(empty: Engine) -> None:
    migrate.upgrade(empty.url, BEFORE)
    with empty.begin() as connection:
        connection.exec_driver_sql(HELD)
    migrate.upgrade(empty.url, AFTER)
    with empty.begin() as connection:
        sizes = [tuple(row) for row in connection.exec_driver_sql(SIZES)]
    assert sizes == [("alc_cleaning", 1), ("alc_held", 2), ("alc_released", None)]
    with pytest.raises(DBAPIError, match="never changes"), empty.begin() as connection:
        connection.exec_driver_sql("UPDATE allocations SET num_gpus = 3 WHERE id = 'alc_held'")
    migrate.downgrade(empty.url, BEFORE)
    migrate.upgrade(empty.url, AFTER)
    with empty.begin() as connection:
        assert [tuple(row) for row in connection.exec_driver_sql(SIZES)] == sizes
