"""An API with a bucket, as real processes, and a folder with a program of which ``muster job submit`` makes a job."""

import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.client.rest import RestClient
from muster.db import migrate
from muster.db.engine import make_engine
from muster.ports import free_port
from muster.settings import make_secret_key_file
from tests.cli.command import Command
from tests.keyed_fleet import KeyedFleet, make_keyed_fleet
from tests.patient import PATIENT
from tests.played_bucket import PlayedBucket, played_bucket
from tests.readiness import is_ready
from tests.waiting import wait_until


@dataclass
class Served:
    url: str
    fleet: KeyedFleet
    bucket: PlayedBucket
    units: UnitOfWorkFactory

    def client(self, role: str = "tenant_member") -> RestClient:
        return RestClient(self.url, self.fleet.tokens[role])


@pytest.fixture(scope="module")
def served_once(server_folder: Path) -> Iterator[Served]:
    folder = server_folder / f"folders-{uuid.uuid4().hex[:8]}"  # a worker may come to this module twice
    folder.mkdir(mode=0o711)
    postgres = PostgresServer(folder / "postgres")
    postgres.start()
    migrate.upgrade(postgres.url())
    engine = make_engine(postgres.url(), limits=PATIENT)
    units = UnitOfWorkFactory(engine)
    fleet = make_keyed_fleet(units)
    make_secret_key_file(folder / "secret.key")
    with played_bucket(folder) as bucket:
        port = free_port()
        variables = child_environment(
            database_url=postgres.url(), secret_key_file=folder / "secret.key", api_port=port, **bucket.settings
        )
        child = Child("api", ["api"], variables, folder / "api.log")
        child.start()
        try:
            wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"))
            yield Served(f"http://127.0.0.1:{port}", fleet, bucket, units)
        finally:
            child.stop()
            engine.dispose()
            postgres.stop()


@pytest.fixture
def served(served_once: Served, muster: Command) -> Served:
    """The bucket as it should be, and a folder with a program that no other test has."""
    served_once.bucket.on_put = lambda _number: None
    served_once.bucket.num_puts = 0
    muster.key_file.write_text(served_once.fleet.tokens["tenant_member"])
    (muster.folder / ".musterignore").write_text(f"# {uuid.uuid4()}\n*.key\n.cache/\n.local/\n")
    (muster.folder / "train.py").write_text(f"print('{uuid.uuid4()}')")
    (muster.folder / "package").mkdir()
    (muster.folder / "package" / "model.py").write_text(f"# {uuid.uuid4()}")
    return served_once


def submit(muster: Command, served: Served, *words: str) -> "subprocess.CompletedProcess[str]":
    return muster.run("job", "submit", *words, url=served.url, HOME=str(muster.folder.parent))


def newest(served: Served) -> dict[str, Any]:
    with served.client() as client:
        job_id = next(iter(client.jobs(limit=1)))["id"]
        program: dict[str, Any] = client.job(job_id)["spec"]["program"]
        return program
