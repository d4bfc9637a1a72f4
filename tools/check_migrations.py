"""Check that the migrations go up, down to nothing and up again, and then match the models, on a server of our own.

Run as ``python -m tools.check_migrations``; exits 1 with the differences.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

from sqlalchemy import text

from local.postgres import PostgresServer
from muster.db import migrate
from muster.db.engine import NO_LIMITS, make_engine
from muster.db.models import Base

_MIGRATED: Final = "migrated"
_MODELLED: Final = "modelled"
_OF_ALEMBIC: Final = "alembic_version"

# Partitions are made by time, and have what their table has.
# NOT NULL is compared with the columns: PostgreSQL 18 alone lists it among the constraints ('n') as well.
_SCHEMA: Final = text(
    """
    SELECT relation.relname, 'column ' || attribute.attname || ' ' || format_type(atttypid, atttypmod)
        || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END
        || CASE attidentity WHEN '' THEN '' ELSE ' IDENTITY ' || attidentity::text END
        || COALESCE(' DEFAULT ' || pg_get_expr(adbin, adrelid), '')
    FROM pg_attribute AS attribute
        JOIN pg_class AS relation ON relation.oid = attrelid AND relkind IN ('r', 'p') AND NOT relispartition
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT conrelid::regclass::text, 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n' AND conrelid <> 0
        AND conrelid NOT IN (SELECT oid FROM pg_class WHERE relispartition)
    UNION ALL
    SELECT tablename, 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public'
        AND tablename NOT IN (SELECT relname FROM pg_class WHERE relispartition)
    """
)
_LEFT_OVER: Final = text(
    """
    SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT typname FROM pg_type
        WHERE typnamespace = 'public'::regnamespace AND typname NOT IN ('alembic_version', '_alembic_version')
    """
)


def schema_of(url: str) -> set[str]:
    """Return every column, constraint and index, one line each."""
    engine = make_engine(url, limits=NO_LIMITS)
    try:
        with engine.connect() as connection:
            rows = connection.execute(_SCHEMA).all()
    finally:
        engine.dispose()
    return {f"{table}: {line}" for table, line in rows if table != _OF_ALEMBIC}


def left_over(url: str) -> set[str]:
    """Return the names that a full downgrade should have removed and did not."""
    engine = make_engine(url, limits=NO_LIMITS)
    try:
        with engine.connect() as connection:
            names = set(connection.execute(_LEFT_OVER).scalars())
    finally:
        engine.dispose()
    return names - {_OF_ALEMBIC, f"{_OF_ALEMBIC}_pkc"}


def create_from_models(url: str) -> None:
    engine = make_engine(url, limits=NO_LIMITS)
    try:
        Base.metadata.create_all(engine)
    finally:
        engine.dispose()


def faults_between(migrated_url: str, modelled_url: str) -> list[str]:
    """Return each disagreement of migrations and models as text. Both databases must be empty."""
    migrate.upgrade(migrated_url)
    first = schema_of(migrated_url)
    migrate.downgrade(migrated_url, migrate.BASE)
    faults = [f"left over after the downgrade: {name}" for name in sorted(left_over(migrated_url))]
    migrate.upgrade(migrated_url)
    migrated = schema_of(migrated_url)
    if migrated != first:
        faults += [f"not the same after down and up: {line}" for line in sorted(migrated ^ first)]
    create_from_models(modelled_url)
    modelled = schema_of(modelled_url)
    faults += [f"only in the migrations: {line}" for line in sorted(migrated - modelled)]
    faults += [f"only in the models: {line}" for line in sorted(modelled - migrated)]
    return faults


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="muster-migrations-") as folder:
        Path(folder).chmod(0o711)
        server = PostgresServer(Path(folder) / "postgres", durable=False)
        server.start()
        try:
            for name in (_MIGRATED, _MODELLED):
                server.create_database(name)
            faults = faults_between(server.url(_MIGRATED), server.url(_MODELLED))
            version = server.version
        finally:
            server.stop()
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    if faults:
        sys.stderr.write(f"migrations and models disagree in {len(faults)} places; the lines above name each\n")
        return 1
    sys.stdout.write(f"migrations: up, down, up; equal to the models at {migrate.head()} (PostgreSQL {version})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
