"""What stood in a row a GPU is packed into the node's row, and comes out of it again."""

import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from tests.telemetry_reports import newest_readings

BEFORE, AFTER = "20261122_1034", "20261122_1035"
FLEET = """
INSERT INTO nodes (id, name, contact, address, num_gpus, is_simulated, labels, past_boot_ids, heartbeat_seq, created_at,
    version)
SELECT id, id, 'LIVE', '127.0.0.1', 2, true, '{}', '[]', 0, now(), 1 FROM unnest(ARRAY['node_a', 'node_b']) AS id;
INSERT INTO gpus (uuid, node_id, slot_index, model, memory_bytes, compute_capability, driver_version, standing,
    is_mig_enabled, is_simulated, cohort_key, version)
SELECT 'GPU-' || node || '-' || slot, 'node_' || node, slot, 'H100', 1, '9.0', '580', 'HEALTHY', false, true, 'h', 1
FROM unnest(ARRAY['a', 'b']) AS node, generate_series(0, 1) AS slot;
INSERT INTO node_latest (node_id, boot_id, boot_order, past_boot_ids, seq, newest_ms, at, received_at, skew_ms)
VALUES ('node_a', 'boot-2', 2, '[]', 32, 0, '2026-11-22 01:00Z', '2026-11-22 01:00:00.25Z', 0);
INSERT INTO gpu_latest VALUES
    ('GPU-a-1', 'node_a', 'boot-2', 2, 32, '2026-11-22 01:00Z', '2026-11-22 01:00:00.25Z', 1, '{0.1,NaN,3}', false),
    ('GPU-a-0', 'node_a', 'boot-1', 1, 90, '2026-11-21 01:00Z', '2026-11-21 01:00:00.5Z', 1, '{NaN,NaN,NaN}', true);
"""
KEPT = """
SELECT gpu_uuid, node_id, boot_id, seq, at, received_at, schema, "values"::text, is_lost FROM gpu_latest ORDER BY 1
"""


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[Engine]:
    name = f"readings_{uuid.uuid4().hex}"
    postgres_server.create_database(name)
    engine = make_engine(postgres_server.url(name))
    yield engine
    engine.dispose()
    postgres_server.drop_database(name)


def test_the_newest_readings_go_there_and_back(empty: Engine) -> None:
    migrate.upgrade(empty.url, BEFORE)
    with empty.begin() as connection:
        connection.exec_driver_sql(FLEET)
        before = connection.exec_driver_sql(KEPT).all()
    migrate.upgrade(empty.url, AFTER)
    with Session(empty) as session:
        newest = newest_readings(session)
    told, lost = newest["GPU-a-1"], newest["GPU-a-0"]
    assert (told.values[:3], told.is_lost, told.reported_in.seq) == ((0.1, None, 3.0), False, 32)
    assert not any(told.values[3:]), "the migrated release knew fewer metrics: the others are unknown"
    assert (set(lost.values), lost.is_lost, lost.reported_in.boot_id) == ({None}, True, "boot-1")
    assert set(newest) == {"GPU-a-0", "GPU-a-1"}
    migrate.downgrade(empty.url, BEFORE)
    with empty.begin() as connection:
        assert connection.exec_driver_sql(KEPT).all() == before
