"""One engine finds what another of the same server compiled, and each still asks its own database."""

from sqlalchemy import Engine, event, select, text
from sqlalchemy.engine.interfaces import CacheStats

from local.postgres import PostgresServer
from muster.db.engine import make_engine
from muster.db.models import Tenant
from muster.domain.ids import TenantId
from tests.databases import Databases
from tests.patient import PATIENT

QUESTION = select(Tenant.id.label("asked_here_alone")).where(Tenant.name == "compiled-once")


def requested(engine: Engine) -> tuple[list[TenantId], CacheStats]:
    """Its answers, and whether the question was compiled for it."""
    stats: list[CacheStats] = []
    event.listen(engine, "before_cursor_execute", lambda *told: stats.append(told[4].cache_hit))
    with engine.connect() as connection:
        answers = list(connection.scalars(QUESTION))
    return answers, stats[-1]


def test_each_requests_its_own_database_in_words_compiled_once(
    postgres_server: PostgresServer, databases: Databases
) -> None:
    with databases.lent() as one, databases.lent() as other:
        first, second = (make_engine(postgres_server.url(name), limits=PATIENT) for name in (one, other))
        with first.begin() as connection:
            connection.execute(
                text("INSERT INTO tenants (id, name, created_at) VALUES ('ten_1', 'compiled-once', now())")
            )
        answers = [requested(engine) for engine in (first, second)]
        first.dispose()
        second.dispose()
    assert answers == [(["ten_1"], CacheStats.CACHE_MISS), ([], CacheStats.CACHE_HIT)]
