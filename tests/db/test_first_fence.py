"""Where a fresh cluster's fences begin."""

from sqlalchemy import create_engine, text

from local.postgres import PostgresServer
from muster.db import migrate

BEFORE, REVISION = "20261123_0943", "20261123_1101"


def serial(url: str) -> int:
    engine = create_engine(url)
    with engine.connect() as connection:
        found: int = connection.execute(text("SELECT fence_serial FROM cluster")).scalar_one()
    engine.dispose()
    return found


def test_two_fresh_clusters_do_not_meet_at_the_same_ports(postgres_server: PostgresServer) -> None:
    found = set()
    for number in range(3):
        name = f"fresh_{number}"
        postgres_server.create_database(name)
        migrate.upgrade(postgres_server.url(name), REVISION)
        found.add(serial(postgres_server.url(name)))
        postgres_server.drop_database(name)
    assert len(found) > 1
    assert all(0 <= each < 10_000 for each in found)


def test_a_cluster_that_has_given_fences_goes_on_behind_them(postgres_server: PostgresServer) -> None:
    postgres_server.create_database("older")
    url = postgres_server.url("older")
    migrate.upgrade(url, BEFORE)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE cluster SET fence_serial = 3"))
    engine.dispose()
    migrate.upgrade(url, REVISION)
    assert serial(url) == 3
    postgres_server.drop_database("older")
