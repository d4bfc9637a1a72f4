"""Real servers for every test that asks: one PostgreSQL and one broker per pytest process, started by the first to ask.

A server per process rather than one for all: it costs half a second, and nothing is shared that a killed process could
leave locked. Each test gets its own database, as the migrations make it (tests/databases.py).
"""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import HealthCheck, settings

from local.binaries import POSTGRES_VARIABLE, packaged_postgres
from local.broker import BrokerServer
from local.postgres import PostgresServer
from tests.databases import Databases
from tests.forked_workers import ForkedWorkers, shared_servers
from tests.found_examples import KeepsExamples, found_examples
from tests.scaled import examples
from tests.swept import swept_folder
from tests.warm_python import WarmPython, warm_python_of

if TYPE_CHECKING:
    from xdist.remote import Producer

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in a script's background has it ignored, and so would every program under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example may take as long as a busy machine needs: what is asked of it is whether it holds.
SOAK_EXAMPLES = 100
# Hypothesis takes other settings for a run in CI, without a database: ours hold everywhere.
FOUND_EXAMPLES = found_examples()
settings.register_profile(
    "any speed",
    deadline=None,
    max_examples=examples(SOAK_EXAMPLES),
    suppress_health_check=[HealthCheck.too_slow],
    database=FOUND_EXAMPLES,
    derandomize=False,
    print_blob=True,
)
settings.load_profile("any speed")

TEMPLATE_DATABASE = "muster_template"
LONG_S = 600.0
"""Up to this timeout a test stays in its place."""
DATABASE_FIXTURES = {"postgres_server", "template_database", "database_url"}


def pytest_configure(config: pytest.Config) -> None:
    """The newest PostgreSQL that everybody gets from the wheel, unless the run names another one.

    A logged exception is written plainly, as by the services: each in colours and with its source costs half a second.
    """
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
    config.pluginmanager.register(KeepsExamples(FOUND_EXAMPLES))
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ForkedWorkers())
    packaged = packaged_postgres()
    if packaged is not None and packaged.is_dir():
        os.environ.setdefault(POSTGRES_VARIABLE, str(packaged))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what needs PostgreSQL, so that it can be run against another version of it.

    Among several workers the files that may take longest begin first: at the end no worker waits for a last long test.
    """
    for item in items:
        if DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("database")
    if hasattr(config, "workerinput"):
        patience_s: dict[Path, float] = {}
        for item in items:
            patience_s[item.path] = max(patience_s.get(item.path, LONG_S), _timeout_s(item))
        items.sort(key=lambda item: -patience_s[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: "Producer") -> object:
    """Divide the tests by seconds and package where the run asks for the stealing of work (tests/distribution.py)."""
    if config.getvalue("dist") != "worksteal":
        return None
    from tests.distribution import Distribution  # noqa: PLC0415  # a run without workers may lack xdist

    return Distribution(config, log)


def _timeout_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return 0.0 if marker is None else float(marker.args[0])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """While nine thousand tests are found nothing is garbage, and looking for it takes a third of the time.

    They stay to the end, so no later step need look through them either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    with swept_folder() as folder:
        yield folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For a test that starts servers of its own: pytest's `tmp_path` is long, and closed to other users."""
    with swept_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def warm_python(server_folder: Path, pytestconfig: pytest.Config) -> Iterator[WarmPython]:
    with warm_python_of("warm_python", server_folder, shared_servers(pytestconfig)) as warm:
        yield warm


@pytest.fixture(scope="session")
def warm_muster(server_folder: Path, pytestconfig: pytest.Config) -> Iterator[WarmPython]:
    """For ``-m muster …``, where a test is about what a command does."""
    with warm_python_of("warm_muster", server_folder, shared_servers(pytestconfig)) as warm:
        yield warm


@pytest.fixture(scope="session")
def warm_stack(server_folder: Path, pytestconfig: pytest.Config) -> Iterator[WarmPython]:
    """For the processes of a control plane and its hosts, where a test is about what they do once they run."""
    with warm_python_of("warm_stack", server_folder, shared_servers(pytestconfig)) as warm:
        yield warm


@pytest.fixture(scope="session")
def postgres_server(server_folder: Path) -> Iterator[PostgresServer]:
    """Durable as in production: a test that passes only without fsync proves nothing."""
    server = PostgresServer(server_folder / "postgres")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def template_database(postgres_server: PostgresServer) -> str:
    """A database at the newest revision, with no rows but those the migrations write."""
    from muster.db import migrate  # noqa: PLC0415  # tests without a database need no SQLAlchemy
    from tests.compiled_once import compile_once  # noqa: PLC0415  # as above

    compile_once()
    postgres_server.create_database(TEMPLATE_DATABASE)
    migrate.upgrade(postgres_server.url(TEMPLATE_DATABASE))
    return TEMPLATE_DATABASE


@pytest.fixture(scope="session")
def databases(postgres_server: PostgresServer, template_database: str) -> Iterator[Databases]:
    databases = Databases(postgres_server, template_database)
    yield databases
    databases.close()


@pytest.fixture
def database_url(postgres_server: PostgresServer, databases: Databases) -> Iterator[str]:
    """The test's own database, out of reach afterwards even where connections are left open."""
    with databases.lent() as name:
        yield postgres_server.url(name)


@pytest.fixture(scope="session")
def broker_server(server_folder: Path) -> Iterator[BrokerServer]:
    server = BrokerServer(server_folder / "broker")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def broker_url(broker_server: BrokerServer) -> str:
    """The broker, emptied."""
    broker_server.flush_all()
    return broker_server.url
