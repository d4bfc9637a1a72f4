"""What the next test finds in a database that another had is what the migrations made."""

from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from local.postgres import PostgresServer
from muster.db.engine import make_engine
from tests.databases import MOST_INDEX_BYTES, Connection, Content, Databases
from tests.fleet_factory import make_fleet
from tests.patient import PATIENT


class Lending:
    def __init__(self, server: PostgresServer, template: str) -> None:
        self.server = server
        self.template = template
        self.databases = Databases(server, template)
        self.made_before = 0

    def changed_by(self, statements: LiteralString) -> None:
        with self.databases.lent() as name, psycopg.connect(self.server.dsn(name), autocommit=True) as connection:
            connection.execute(statements)

    def found(self, name: str) -> Content:
        """What it is held against."""
        with psycopg.connect(self.server.dsn(name), autocommit=True) as connection:
            return Content.read(connection)

    @property
    def made(self) -> int:
        return self.databases.num_made - self.made_before


@pytest.fixture(scope="module")
def kept(postgres_server: PostgresServer, template_database: str) -> Iterator[Lending]:
    lending = Lending(postgres_server, template_database)
    yield lending
    lending.databases.drop_idle()
    lending.databases.close()


@pytest.fixture
def lending(kept: Lending) -> Lending:
    """One database is there and not lent."""
    with kept.databases.lent():
        pass
    kept.made_before = kept.databases.num_made
    return kept


def live_through_much(engine: Engine) -> None:
    fleet = make_fleet(UnitOfWorkFactory(engine))
    for _ in range(3):
        fleet.submit()
    fleet.cycle()
    fleet.beat()
    fleet.cancel(fleet.submit())
    fleet.reconcile()


def test_what_was_done_in_it_is_nowhere_in_the_next(lending: Lending) -> None:
    with lending.databases.lent() as name:
        engine = make_engine(lending.server.url(name), limits=PATIENT)
        live_through_much(engine)
        engine.dispose()
        lived, template = lending.found(name), lending.found(lending.template)
        assert lived.seeds.keys() > template.seeds.keys()
        assert lived.sequences != template.sequences
    with lending.databases.lent() as name:
        emptied = lending.found(name)
    assert (emptied.seeds, emptied.sequences) == (template.seeds, template.sequences)
    assert sorted(zip(*emptied.figures, strict=True)) == sorted(zip(*template.figures, strict=True))
    assert lending.made == 0, "it was the same one"


def test_rows_lie_in_the_order_in_which_they_came(lending: Lending) -> None:
    fill = (
        "INSERT INTO tenants (id, name, created_at) SELECT 'ten_' || n, 'n' || n, now() FROM generate_series(1, 300) n"
    )
    with lending.databases.lent() as name, psycopg.connect(lending.server.dsn(name), autocommit=True) as connection:
        connection.execute(fill)
        first = places(connection)
        connection.execute("UPDATE tenants SET name = upper(name)")
    with lending.databases.lent() as name, psycopg.connect(lending.server.dsn(name), autocommit=True) as connection:
        connection.execute(fill)
        assert places(connection) == first
    assert lending.made == 0


def places(connection: Connection) -> list[tuple[str, str]]:
    return [(place, tenant) for place, tenant in connection.execute("SELECT ctid::text, id FROM tenants")]


def test_what_kept_a_connection_has_lost_it_and_finds_no_such_database(lending: Lending) -> None:
    with lending.databases.lent() as name:
        kept = psycopg.connect(lending.server.dsn(name))
    with pytest.raises(psycopg.OperationalError):
        kept.execute("SELECT 1")
    kept.close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(lending.server.dsn(name))
    with lending.databases.lent() as other:
        assert other != name
    assert lending.made == 0


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE another (a int)",
        "CREATE FUNCTION another() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE INDEX another ON jobs (name)",
        "DROP TRIGGER num_gpus_stays ON allocations",
        "ALTER TABLE allocations DISABLE TRIGGER num_gpus_stays; ALTER TABLE allocations ENABLE TRIGGER num_gpus_stays",
        "ALTER TABLE jobs ALTER COLUMN tier DROP NOT NULL",
        "ALTER TABLE jobs ENABLE ROW LEVEL SECURITY",
        "ALTER SEQUENCE audit_entries_serial_seq INCREMENT 2",
        "GRANT SELECT ON jobs TO PUBLIC",
        "REINDEX TABLE jobs",
        "INSERT INTO tenants (id, name, created_at) VALUES ('ten_a', 'a', now()); ANALYZE tenants",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET work_mem = 64', current_database()); END $$",
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 7', current_database()); END $$",
    ],
)
def test_one_that_was_altered_but_by_rows_is_not_lent_again(lending: Lending, statements: LiteralString) -> None:
    lending.changed_by(statements)
    with lending.databases.lent():
        assert lending.made == 1


def test_one_that_grew_is_not_lent_again(lending: Lending) -> None:
    lending.changed_by(
        "INSERT INTO tenants (id, name, created_at)"
        " SELECT 'ten_' || n, repeat('n', 40) || n, now() FROM generate_series(1, 3000) n"
    )
    with lending.databases.lent():
        assert lending.made == 1, f"its indexes are larger than {MOST_INDEX_BYTES} bytes"


@pytest.mark.parametrize(
    "statements",
    [
        "DELETE FROM state_edges; DELETE FROM cluster; DELETE FROM breakers",
        "UPDATE state_edges SET target = origin || target; DELETE FROM alembic_version",
    ],
)
def test_what_the_migrations_put_in_is_there_again(lending: Lending, statements: LiteralString) -> None:
    template = lending.found(lending.template)
    lending.changed_by(f"SET session_replication_role = replica; {statements}")
    with lending.databases.lent() as name:
        found = lending.found(name)
    assert found.seeds == template.seeds
    assert lending.made == 0


LOSE_THE_COUNTERS = "SELECT pg_stat_force_next_flush(); SELECT pg_stat_reset()"
"""As a crash of the server does: nothing says any more which tables were written."""


def test_rows_that_were_written_before_the_counters_were_lost_are_found(lending: Lending) -> None:
    template = lending.found(lending.template)
    lending.changed_by("INSERT INTO tenants (id, name, created_at) VALUES ('ten_a', 'a', now())")
    with lending.databases.lent() as name, psycopg.connect(lending.server.dsn(name), autocommit=True) as connection:
        connection.execute("INSERT INTO tenants (id, name, created_at) VALUES ('ten_b', 'b', now())")
        connection.execute(LOSE_THE_COUNTERS)
    with lending.databases.lent() as name:
        assert lending.found(name).seeds == template.seeds
    assert lending.made == 0


def test_an_alteration_before_the_counters_were_lost_is_found(lending: Lending) -> None:
    with lending.databases.lent() as name, psycopg.connect(lending.server.dsn(name), autocommit=True) as connection:
        connection.execute("DROP TRIGGER num_gpus_stays ON allocations")
        connection.execute(LOSE_THE_COUNTERS)
    with lending.databases.lent():
        assert lending.made == 1


def test_rows_of_a_transaction_that_was_rolled_back_leave_no_space(lending: Lending) -> None:
    template = lending.found(lending.template)
    with lending.databases.lent() as name, psycopg.connect(lending.server.dsn(name)) as connection:
        connection.execute("INSERT INTO tenants (id, name, created_at) VALUES ('ten_a', 'a', now())")
        connection.rollback()
    with lending.databases.lent() as name:
        found = lending.found(name)
    assert sorted(zip(*found.figures, strict=True)) == sorted(zip(*template.figures, strict=True))
    assert lending.made == 0


def test_a_stopped_server_lends_again_once_it_runs(short_folder: Path) -> None:
    server = PostgresServer(short_folder / "postgres")
    server.start()
    server.create_database("template")
    databases = Databases(server, "template")
    with databases.lent() as name, psycopg.connect(server.dsn(name), autocommit=True) as connection:
        connection.execute("CREATE TABLE another (a int)")
        server.kill()
        server.start()
    with databases.lent():
        assert databases.num_made == 2, "no counter knew of the table, for the server had crashed"
    databases.close()
    server.stop()
