"""Real stores of the S3 protocol: our own service and moto's server, each a process of its own."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from muster.ports import free_port
from muster.settings import Settings, load_settings
from muster.store.key_file import make_key_file, read_keys
from muster.store.keys import chunk_key
from muster.store.objects import ObjectStore, SignedRequest
from tests.waiting import wait_until

BUCKET = "muster"
TENANT = f"ten_{'0' * 26}"


def chunk_of(content: bytes) -> str:
    return chunk_key(TENANT, hashlib.sha256(content).hexdigest())  # type: ignore[arg-type]  # a tenant's id


@dataclass
class Store:
    """A store that runs. ``client`` sends nothing but plain HTTP, as clients and hosts do."""

    url: str
    folder: Path
    client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=30.0))

    @property
    def key_file(self) -> Path:
        return self.folder / "store.key"

    def settings(self, **more: object) -> Settings:
        given = {"store_url": self.url, "store_key_file": self.key_file, **more}
        return load_settings({f"MUSTER_{name.upper()}": str(value) for name, value in given.items()})

    def objects(self, **more: object) -> ObjectStore:
        made = ObjectStore.from_settings(self.settings(**more))
        assert made is not None
        return made

    def boto3(self) -> Any:
        key = read_keys(self.key_file)[0]
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=key.name,
            aws_secret_access_key=key.secret,
            config=Config(signature_version="s3v4"),
        )

    def upload_request(self, key: str, content: bytes, **more: Any) -> SignedRequest:
        return self.objects().upload(key, len(content), hashlib.sha256(content).hexdigest(), more.get("now", now()))

    def put(self, key: str, content: bytes) -> httpx.Response:
        return self.send(self.upload_request(key, content), content)

    def get(self, key: str, **headers: str) -> httpx.Response:
        return self.send(self.objects().download(key, now()), None, **headers)

    def send(self, request: SignedRequest, content: bytes | None = None, **headers: str) -> httpx.Response:
        return self.client.request(request.method, request.url, headers={**request.headers, **headers}, content=content)


@dataclass
class OurStore(Store):
    """``muster store serve`` over ``folder``. ``variables``: more settings of it. ``words``: another command."""

    variables: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ("store", "serve")
    process: subprocess.Popen[bytes] | None = None

    @property
    def disk(self) -> Path:
        return self.folder / "store"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def drafts(self) -> list[str]:
        return sorted(each.name for each in (self.disk / "drafts").iterdir())

    def log(self) -> str:
        return (self.folder / "store.log").read_text(errors="replace")

    def start(self, **variables: str) -> None:
        """Until it answers, or has ended."""
        with (self.folder / "store.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "muster", *self.words],
                env={**self.environment(), **variables},
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._answers() or not self.is_running(), timeout_s=60.0)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "MUSTER_STORE_KEY_FILE": str(self.key_file),
            "MUSTER_STORE_DIR": str(self.disk),
            "MUSTER_STORE_PORT": self.url.rpartition(":")[2],
            "MUSTER_STORE_RESERVE_BYTES": "0",
            **self.variables,
        }

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> int:
        """End it in order, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def wait_killed(self) -> None:
        """Wait until it has killed itself at a failpoint."""
        assert self.process is not None
        assert self.process.wait(timeout=60) == -signal.SIGKILL

    def close(self) -> None:
        self.client.close()
        if self.process is not None and self.is_running():
            self.process.kill()
            self.process.wait()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", trust_env=False, verify=False).status_code == 200  # noqa: S501
        except httpx.HTTPError:
            return False


def now() -> datetime:
    return datetime.now(UTC)


def our_store(folder: Path, **variables: str) -> OurStore:
    """Return one that is not started yet."""
    folder.mkdir(parents=True, exist_ok=True)
    make_key_file(folder / "store.key")
    return OurStore(f"http://127.0.0.1:{free_port()}", folder, variables=variables)


@contextmanager
def ours(folder: Path, **variables: str) -> Iterator[OurStore]:
    store = our_store(folder, **variables)
    try:
        store.start()
        assert store.is_running(), store.log()
        yield store
    finally:
        store.close()


@contextmanager
def motos(folder: Path) -> Iterator[Store]:
    make_key_file(folder / "store.key")
    port = free_port()
    with (folder / "moto.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        store = Store(f"http://127.0.0.1:{port}", folder)
        try:
            wait_until(lambda: _has_bucket(store), timeout_s=60.0)
            yield store
        finally:
            store.client.close()
            process.terminate()
            process.wait()


def _has_bucket(store: Store) -> bool:
    try:
        store.boto3().create_bucket(Bucket=BUCKET)
    except Exception:  # noqa: BLE001  # whatever it is, it does not listen yet
        return False
    return True
