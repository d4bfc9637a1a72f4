"""Output of the release before stays where it is at the upgrade: no row moves, and both releases read and write it."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError

from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine

BEFORE, AFTER = "20261127_1110", "20261127_1120"
ALONE = "SET LOCAL session_replication_role = replica"
"""Without the job of the attempt."""
ATTEMPT = """
    INSERT INTO attempts (id, job_id, tenant_id, number, fence, state, placed_at, on_node_loss, rendezvous_address,
        rendezvous_port, version)
    VALUES ('att_1', 'job_1', 'ten_1', 1, 1, 'RUNNING', now(), 'wait', '127.0.0.1', 29500, 1)
"""
PIECE = """
    INSERT INTO log_chunks (attempt_id, node_id, stream, byte_offset, tenant_id, job_id, content, received_at)
    VALUES ('att_1', 'node_1', '0', :offset, 'ten_1', 'job_1', 'x', now() + :days * interval '1 day')
    ON CONFLICT DO NOTHING RETURNING position
"""
PIECES = "SELECT byte_offset, position FROM log_chunks ORDER BY position"
FILES = "SELECT pg_relation_filenode(oid) FROM pg_class WHERE relname = :name"
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def empty(postgres_server: PostgresServer) -> Iterator[Engine]:
    name = f"logs_{uuid.uuid4().hex}"
    postgres_server.create_database(name)
    engine = make_engine(postgres_server.url(name))
    yield engine
    engine.dispose()
    postgres_server.drop_database(name)


def store(engine: Engine, *offsets: int, days: float = 0) -> list[int | None]:
    """Store pieces as release 0.1.0 does, and return their positions; None for one that is there."""
    with engine.begin() as connection:
        return [connection.scalar(text(PIECE), {"offset": offset, "days": days}) for offset in offsets]


def at_release_before(engine: Engine) -> None:
    migrate.upgrade(engine.url, BEFORE)
    with engine.begin() as connection:
        connection.execute(text(ALONE))
        connection.execute(text(ATTEMPT))


def pieces(engine: Engine) -> list[tuple[int, int]]:
    with engine.connect() as connection:
        return [(row[0], row[1]) for row in connection.execute(text(PIECES))]


def partition_of(engine: Engine, offset: int) -> str:
    query = text("SELECT tableoid::regclass::text FROM log_chunks WHERE byte_offset = :offset")
    with engine.connect() as connection:
        return str(connection.scalar(query, {"offset": offset}))


def file_of(engine: Engine, name: str) -> int | None:
    with engine.connect() as connection:
        found: int | None = connection.scalar(text(FILES), {"name": name})
    return found


def test_no_row_moves_and_positions_go_on(empty: Engine) -> None:
    at_release_before(empty)
    assert store(empty, 1, 2, days=-40) == [1, 2]
    before = file_of(empty, "log_chunks")
    migrate.upgrade(empty.url, AFTER)
    assert pieces(empty) == [(1, 1), (2, 2)]
    kept = partition_of(empty, 1)
    assert (kept.startswith("log_chunks_until_"), file_of(empty, kept)) == (True, before)
    (repeated, new), (later,) = store(empty, 1, 3), store(empty, 4, days=8)
    assert (repeated, partition_of(empty, 3), partition_of(empty, 4)) == (None, kept, "log_chunks_default")
    assert new is not None
    assert later is not None
    assert 2 < new < later
    with pytest.raises(DBAPIError, match="byte_offset"):
        store(empty, -1)
    migrate.downgrade(empty.url, BEFORE)
    assert pieces(empty) == [(1, 1), (2, 2), (3, new), (4, later)]
    (after,) = store(empty, 5)
    assert after is not None
    assert after > later


def test_a_row_of_the_far_future_does_not_hold_up_the_upgrade(empty: Engine) -> None:
    at_release_before(empty)
    store(empty, 1, days=400)
    migrate.upgrade(empty.url, AFTER)
    assert partition_of(empty, 1).startswith("log_chunks_until_")


def test_an_exchange_that_fails_leaves_no_bound_on_new_output(empty: Engine) -> None:
    """Else release 0.1.0 could store no output from a week later on."""
    at_release_before(empty)
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE log_chunks_default (id int)"))
    with pytest.raises(DBAPIError, match="log_chunks_default"):
        migrate.upgrade(empty.url, AFTER)
    assert migrate.current(empty.url) == BEFORE
    store(empty, 1, days=30)
    with empty.begin() as connection:
        connection.execute(text("DROP TABLE log_chunks_default"))
    migrate.upgrade(empty.url, AFTER)
    assert [offset for offset, _ in pieces(empty)] == [1]


def test_a_piece_that_is_stored_during_the_downgrade_is_kept(empty: Engine) -> None:
    at_release_before(empty)
    migrate.upgrade(empty.url, AFTER)
    with ThreadPoolExecutor(1) as others:
        with empty.begin() as connection:
            connection.execute(text(PIECE), {"offset": 1, "days": 0})
            done = others.submit(migrate.downgrade, empty.url, BEFORE)
            with empty.connect() as watcher:
                while not done.done() and not watcher.scalar(text(WAITS)):
                    watcher.rollback()
        done.result()
    assert [offset for offset, _ in pieces(empty)] == [1]


def test_a_piece_that_is_set_aside_is_kept_at_the_downgrade(empty: Engine) -> None:
    at_release_before(empty)
    migrate.upgrade(empty.url, AFTER)
    (first,) = store(empty, 1)
    with empty.begin() as connection:
        connection.execute(text("CREATE TABLE log_chunks_aside AS SELECT * FROM log_chunks"))
        connection.execute(text("DELETE FROM log_chunks"))
    migrate.downgrade(empty.url, BEFORE)
    assert pieces(empty) == [(1, first)]
