"""A content store of the S3 protocol (moto's server) and the API over HTTP, as hosts see both."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvicorn

from api.app import create_app
from api.dependencies import AppDependencies
from control.core.unit_of_work import UnitOfWorkFactory
from control.secrets.key_wrapping import KeyWrapper
from control.tenants import keys
from muster.domain.ids import NodeId
from muster.domain.principals import Role
from muster.ports import free_port
from muster.store.key_file import KeyFile
from muster.store.keys import chunk_key, manifest_key
from muster.store.objects import ObjectStore
from tests.fleet_factory import OPERATOR, Fleet
from tests.store.stores import BUCKET, motos
from tests.stored_bundles import store_bundle
from tests.waiting import wait_until
from tests.workers.host.content.bundle_case import stored
from workers.host.bundle_order import BundlesHost


@dataclass
class S3:
    """``store``: as the control plane knows it."""

    client: Any
    store: ObjectStore

    def put(self, fleet: Fleet, folder: Path) -> str:
        """Store a folder as a client uploads it; return its digest."""
        digest, _, chunks, manifest = stored(folder)
        tenant_id = fleet.tenant_id
        store_bundle(fleet.units, fleet.tenant, manifest)
        for name, content in chunks.items():
            self.client.put_object(Bucket=BUCKET, Key=chunk_key(tenant_id, name), Body=content)
        self.client.put_object(Bucket=BUCKET, Key=manifest_key(tenant_id, digest), Body=manifest)
        return digest


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    with motos(folder) as server:
        yield S3(server.boto3(), server.objects())


@contextmanager
def served_api(
    units: UnitOfWorkFactory, store: ObjectStore | None, secret_keys: KeyWrapper | None = None
) -> Iterator[str]:
    """Serve the API in a thread; yield its address."""
    port = free_port()
    app = create_app(AppDependencies(units=units, secret_key=b"x" * 32, store=store, secret_keys=secret_keys))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)


def bundles_host(units: UnitOfWorkFactory, node_id: NodeId, state_dir: Path, url: str) -> BundlesHost:
    """How a host of these tests gets bundles, with a key of its own."""
    with units.begin(OPERATOR, keys.CREATE) as unit:
        name = f"host-{time.monotonic_ns()}"
        token = keys.create(unit, name=name, role=Role.NODE, node_id=node_id).token.text
    key_file = state_dir.parent / "node.key"
    key_file.parent.mkdir(parents=True, exist_ok=True)
    key_file.write_text(token)
    key_file.chmod(0o600)
    return BundlesHost(state_dir, url, key_file, None, 1 << 30, node_id=node_id)


@dataclass
class GatedStore:
    """A store that answers as a test says. ``fault``: of a key; None: its content."""

    url: str
    store: ObjectStore
    content: dict[str, bytes]
    fault: Callable[[str], int | None] = lambda _: None
    requested: list[str] = field(default_factory=list)
    is_open: threading.Event = field(default_factory=threading.Event)
    """While it is not set, no chunk is answered."""

    def put(self, fleet: Fleet, folder: Path) -> str:
        digest, _, chunks, manifest = stored(folder)
        tenant_id = fleet.tenant_id
        store_bundle(fleet.units, fleet.tenant, manifest)
        self.content |= {chunk_key(tenant_id, name): content for name, content in chunks.items()}
        self.content[manifest_key(tenant_id, digest)] = manifest
        return digest

    def requested_chunks(self) -> list[str]:
        return [key for key in self.requested if "/chunks/" in key]


@contextmanager
def gated_store(folder: Path) -> Iterator[GatedStore]:
    """Serve a store whose chunks wait for ``is_open``."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # an answer in one packet, as a store sends it

        def do_GET(self) -> None:
            key = self.path.partition("?")[0].removeprefix(f"/{BUCKET}/")
            found.requested.append(key)
            if "/chunks/" in key:
                found.is_open.wait(60)
            status = found.fault(key) or (200 if key in found.content else 404)
            content = found.content[key] if status == 200 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's signature
            """Say nothing."""

    (folder / "gated.key").write_text("tester a-secret-of-the-store\n")
    (folder / "gated.key").chmod(0o600)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    url = f"http://127.0.0.1:{server.server_address[1]}"
    found = GatedStore(url, ObjectStore(url, BUCKET, KeyFile(folder / "gated.key"), region="us-east-1"), {})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.is_open.set()
        server.shutdown()
        server.server_close()
        thread.join(60)
