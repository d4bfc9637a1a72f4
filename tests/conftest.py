"""Real servers for every test that asks: one PostgreSQL and one broker per pytest process, started by the first to ask.

A server per process rather than one for all: it costs half a second, and nothing is shared that a killed process could
leave locked. Each test gets its own database, as the migrations make it (tests/databases.py).
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
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
from tests.found_examples import KeepsExamples, found_examples
from tests.scaled import examples
from tests.warm_python import WarmPython

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

PARTS_OF_A_STACK = (
    "api.serve",
    "console.app",
    "workers.control.scheduler_loop",
    "workers.control.main",
    "workers.host.main",
    "agents.daemon",
    "agents.probes.simulated",
    "agents.scan.scan",
)
PARTS_OF_A_TRAINING = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.utils.data",
    "muster.train.parallel.pairwise",
)
"""Not the runtime itself, which receives a stop from its import on. An optimizer imports dynamo at its first step."""
TEMPLATE_DATABASE = "muster_template"
LONG_S = 600.0
"""Up to this timeout a test stays in its place."""
DATABASE_FIXTURES = {"postgres_server", "template_database", "database_url"}

# Runs next to pytest, sees the end of its input when pytest ends in whatever way, lets the servers stop and removes
# their folder: after a kill -9 nothing is left.
JANITOR = """
import pathlib, shutil, sys, time
folder = pathlib.Path(sys.argv[1])
sys.stdin.read()
deadline = time.monotonic() + 60
while list(folder.glob("*/cluster/postmaster.pid")) and time.monotonic() < deadline:
    time.sleep(0.02)
deadline = time.monotonic() + 60
while folder.exists() and time.monotonic() < deadline:
    shutil.rmtree(folder, ignore_errors=True)
    time.sleep(0.02)
"""


def pytest_configure(config: pytest.Config) -> None:
    """The newest PostgreSQL that everybody gets from the wheel, unless the run names another one.

    A logged exception is written plainly, as by the services: each in colours and with its source costs half a second.
    """
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
    config.pluginmanager.register(KeepsExamples(FOUND_EXAMPLES))
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


@contextlib.contextmanager
def swept_folder() -> Iterator[Path]:
    """A folder of a short name that goes with this process, and that the servers' unprivileged user may traverse."""
    folder = Path(tempfile.mkdtemp(prefix="muster-test-"))
    folder.chmod(0o711)
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", JANITOR, folder], stdin=subprocess.PIPE, start_new_session=True
    ) as janitor:
        yield folder
        # Leaving the block closes its input and waits for it.
        assert janitor.poll() is None


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
def warm_python(server_folder: Path) -> Iterator[WarmPython]:
    folder = server_folder / "warm"
    folder.mkdir()
    with WarmPython(folder, *PARTS_OF_A_TRAINING) as warm:
        yield warm


@pytest.fixture(scope="session")
def warm_muster(server_folder: Path) -> Iterator[WarmPython]:
    """For ``-m muster …``, where a test is about what a command does."""
    folder = server_folder / "warm-muster"
    folder.mkdir()
    packages = ("muster.cli.*", "muster.client.rest", "local.local_stack", "control.core.unit_of_work")
    modules = ("workers.local.local_run", "agents.scan.scan", "agents.probes.simulated")
    with WarmPython(folder, *packages, *modules) as warm:
        yield warm


@pytest.fixture(scope="session")
def warm_stack(server_folder: Path) -> Iterator[WarmPython]:
    """For the processes of a control plane and its hosts, where a test is about what they do once they run."""
    folder = server_folder / "warm-stack"
    folder.mkdir()
    with WarmPython(folder, "muster.cli.host.processes", "muster.cli.framework.app", *PARTS_OF_A_STACK) as warm:
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
