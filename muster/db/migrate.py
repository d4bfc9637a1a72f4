"""Bring a database's schema to a revision. Two processes may do so at once: the second waits and finds it done."""

import threading
from importlib.resources import files
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL

from muster.db.engine import NO_LIMITS, make_engine
from muster.db.errors import translated_errors

HEAD: Final = "head"
BASE: Final = "base"

_ONE_AT_A_TIME: Final = threading.Lock()
"""Alembic keeps its current script in module globals, so two threads of one process take turns."""


def _config() -> Config:
    folder = str(files("migrations"))
    config = Config()
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("version_locations", f"{folder}/versions".replace("%", "%%"))
    config.set_main_option("recursive_version_locations", "true")
    config.set_main_option("path_separator", "newline")
    return config


def head() -> str:
    """Return the newest revision that this program knows."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise RuntimeError("there are no migrations in this installation")
    return revision


def upgrade(url: str | URL, revision: str = HEAD) -> None:
    """Apply every migration up to ``revision``, each in a transaction. Raise ``UnavailableError``."""
    _run(url, revision, is_upgrade=True)


def downgrade(url: str | URL, revision: str) -> None:
    """Undo the migrations above ``revision`` (``base``: all of them). Data in dropped tables is lost."""
    _run(url, revision, is_upgrade=False)


def current(url: str | URL) -> str | None:
    """Return the database's revision; None before the first migration. Raise ``UnavailableError``."""
    engine = make_engine(url, application_name="muster migrate")
    try:
        with translated_errors(), engine.connect() as connection:
            return MigrationContext.configure(connection).get_current_revision()
    finally:
        engine.dispose()


def _run(url: str | URL, revision: str, *, is_upgrade: bool) -> None:
    engine = make_engine(url, application_name="muster migrate", limits=NO_LIMITS)
    config = _config()
    try:
        with _ONE_AT_A_TIME, translated_errors(), engine.connect() as connection:
            config.attributes["connection"] = connection
            move = command.upgrade if is_upgrade else command.downgrade
            move(config, revision)
    finally:
        engine.dispose()
