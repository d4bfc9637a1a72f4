"""An API and our content store as real processes, and a job whose outputs a host of the test uploads."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.client.host import HostClient
from muster.client.rest import RestClient
from muster.content.manifest import CHUNK_BYTES, VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db import migrate
from muster.db.engine import make_engine
from muster.domain.ids import AttemptId, JobId
from muster.ports import free_port
from muster.settings import make_secret_key_file
from muster.wire.content import FolderUploadsRequest
from muster.wire.host import HOST_CAPABILITIES, PROTOCOL_VERSION
from tests.cli.command import Command
from tests.fleet_factory import Fleet
from tests.keyed_fleet import KeyedFleet, make_keyed_fleet
from tests.patient import PATIENT
from tests.played_host import PlayedHost
from tests.readiness import is_ready
from tests.store.stores import OurStore, ours
from tests.waiting import wait_until

SUCCESS: dict[str, object] = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0}}}
Files = Mapping[str, "bytes | str"]
"""Path → its bytes; of a link, its target."""


def manifest_of(files: Files) -> tuple[bytes, dict[str, bytes]]:
    """Return the manifest of a folder with these files, and its chunks by digest."""
    entries: list[Entry] = []
    objects: dict[str, bytes] = {}
    for path, content in sorted(files.items()):
        if isinstance(content, str):
            entries.append(Entry(path, Kind.LINK, 0, (content,)))
            continue
        parts = [content[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]
        objects |= {digest_of(part): part for part in parts}
        kind = Kind.PROGRAM if path.endswith(".sh") else Kind.FILE
        entries.append(Entry(path, kind, len(content), tuple(map(digest_of, parts))))
    manifest = encode(Manifest(VERSION, tuple(entries)))
    return manifest, {**objects, digest_of(manifest): manifest}


@dataclass
class ServedOutputs:
    url: str
    keyed: KeyedFleet
    fleet: Fleet
    store: OurStore
    checkpoints: Path
    begun: list[tuple[AttemptId, int]] = field(default_factory=list)

    def client(self, role: str = "tenant_member") -> RestClient:
        return RestClient(self.url, self.keyed.tokens[role])

    def started(self, **spec: object) -> tuple[JobId, AttemptId, int]:
        """A job that its host has claimed."""
        host = self.host()
        host.beat(capabilities=HOST_CAPABILITIES)
        job_id = self.fleet.submit(**spec)
        self.fleet.cycle()
        attempt = self.fleet.attempts(job_id)[0].attempt
        capabilities = tuple(word for word in HOST_CAPABILITIES if word != "ready")
        assert host.claim(attempt.id, attempt.fence, capabilities=capabilities).granted
        self.begun.append((attempt.id, attempt.fence))
        return job_id, attempt.id, attempt.fence

    def host(self) -> PlayedHost:
        return PlayedHost(self.fleet.units, self.fleet.node_id, seq=next(self.fleet.beats))

    def upload(self, attempt_id: AttemptId, fence: int, files: Files, name: str = "final") -> str:
        """As a host does: begin, put what the store lacks, confirm. Return the digest."""
        manifest, objects = manifest_of(files)
        client = HostClient(self.url, self.keyed.tokens["node"])
        try:
            found = client.begin_folder(attempt_id, "outputs", name, manifest, fence=fence, protocol=PROTOCOL_VERSION)
            while found.state != "complete":
                for one in found.uploads:
                    answer = httpx.put(one.url, headers=one.headers, content=objects[one.digest], trust_env=False)
                    assert answer.status_code == 200
                taken = tuple(one.digest for one in found.uploads)
                request = FolderUploadsRequest(
                    protocol=PROTOCOL_VERSION, fence=fence, digest=digest_of(manifest), uploaded=taken
                )
                found = client.confirm_folder(attempt_id, "outputs", name, request)
        finally:
            client.close()
        return found.digest


@pytest.fixture(scope="module")
def outputs_once(server_folder: Path) -> Iterator[ServedOutputs]:
    folder = server_folder / f"outputs-{uuid.uuid4().hex[:8]}"
    folder.mkdir(mode=0o711)
    postgres = PostgresServer(folder / "postgres")
    postgres.start()
    migrate.upgrade(postgres.url())
    engine = make_engine(postgres.url(), limits=PATIENT)
    units = UnitOfWorkFactory(engine)
    keyed = make_keyed_fleet(units)
    make_secret_key_file(folder / "secret.key")
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    with ours(folder / "store", MUSTER_STORE_CHECKPOINT_DIRS=str(checkpoints)) as store:
        port = free_port()
        variables = child_environment(
            database_url=postgres.url(),
            secret_key_file=folder / "secret.key",
            api_port=port,
            store_url=store.url,
            store_gateway_url=store.url,
            store_checkpoint_dirs=checkpoints,
            store_key_file=store.key_file,
        )
        child = Child("api", ["api"], variables, folder / "api.log")
        child.start()
        try:
            wait_until(lambda: is_ready(f"http://127.0.0.1:{port}"))
            yield ServedOutputs(f"http://127.0.0.1:{port}", keyed, keyed.fleet(units), store, checkpoints)
        finally:
            child.stop()
            engine.dispose()
            postgres.stop()


@pytest.fixture
def outputs(outputs_once: ServedOutputs, muster: Command) -> Iterator[ServedOutputs]:
    muster.key_file.write_text(outputs_once.keyed.tokens["tenant_member"])
    yield outputs_once
    for attempt_id, fence in outputs_once.begun:
        for kind in ("started", "exited", "cleaned"):
            outputs_once.host().report(attempt_id, fence, kind, record=SUCCESS if kind == "exited" else None)
    outputs_once.begun.clear()
    outputs_once.fleet.reconcile()
