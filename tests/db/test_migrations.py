"""Migrations: there and back, equal to the models, and safe when two processes start at once."""

import uuid
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from sqlalchemy import text

from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import make_engine
from muster.domain.errors import UnavailableError
from tools.check_migrations import create_from_models, faults_between, schema_of


@pytest.fixture
def empty_urls(postgres_server: PostgresServer) -> Iterator[list[str]]:
    names = [f"empty_{uuid.uuid4().hex}" for _ in range(2)]
    for name in names:
        postgres_server.create_database(name)
    yield [postgres_server.url(name) for name in names]
    for name in names:
        postgres_server.drop_database(name)


def test_migrations_go_up_down_up_and_equal_the_models(empty_urls: list[str]) -> None:
    assert faults_between(*empty_urls) == []


def test_a_difference_from_the_models_is_seen(empty_urls: list[str]) -> None:
    migrated, modelled = empty_urls
    migrate.upgrade(migrated)
    create_from_models(modelled)
    engine = make_engine(migrated)
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX uq_attempts_job_id_live"))
        connection.execute(text("ALTER TABLE jobs ALTER COLUMN tier DROP NOT NULL"))
    engine.dispose()
    differences = sorted(schema_of(migrated) ^ schema_of(modelled))
    assert [line.split()[:3] for line in differences] == [
        ["attempts:", "index", "CREATE"],
        ["jobs:", "column", "tier"],
        ["jobs:", "column", "tier"],
    ]


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_two_may_migrate_at_once(empty_urls: list[str], workers: str) -> None:
    pool: Executor = (
        ThreadPoolExecutor(2) if workers == "threads" else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    )
    with pool:
        list(pool.map(migrate.upgrade, [empty_urls[0]] * 2))
    assert migrate.current(empty_urls[0]) == migrate.head()


def test_a_new_database_has_no_revision(empty_urls: list[str]) -> None:
    assert migrate.current(empty_urls[0]) is None


def test_a_database_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        migrate.current("postgresql://nobody@127.0.0.1:1/nothing")


def test_each_migration_is_committed_by_itself(empty_urls: list[str]) -> None:
    """A later revision that fails, or is slow, neither undoes nor holds locks of an earlier one."""
    url = empty_urls[0]
    first, second = "20261121_0400", "20261121_0401"
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE nodes (id text)"))  # the second revision cannot create its own
    with pytest.raises(Exception, match="nodes"):
        migrate.upgrade(url, second)
    engine.dispose()
    assert migrate.current(url) == first
