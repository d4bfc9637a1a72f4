"""A real server of the S3 protocol (moto's), and one job's prefix in a bucket of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from muster.train.checkpoint.storage.bucket import Bucket
from muster.train.checkpoint.storage.object_store import ObjectStore
from muster.train.checkpoint.storage.places import S3Place

from .train_case import free_port, until

BUCKET = "checkpoints"
SECRET = "never-to-be-seen"


class S3Server:
    """``environment``: what a program needs to find it, and to be let in."""

    def __init__(self, port: int) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "tester",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="tester",
            aws_secret_access_key=SECRET,
        )

    def is_up(self) -> bool:
        try:
            self.client.create_bucket(Bucket=BUCKET)
        except Exception:  # noqa: BLE001  # whatever it is, it does not listen yet
            return False
        return True

    def prefix(self, name: str) -> "Prefix":
        return Prefix(self, name)


class Prefix:
    """One job's."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.place = S3Place(BUCKET, name)
        self.server = server

    @property
    def variables(self) -> dict[str, Any]:
        """For a rank that keeps its checkpoints here."""
        return {"MUSTER_CHECKPOINT_DIR": "", "MUSTER_CHECKPOINT_STORE": str(self.place), **self.server.environment}

    def bucket(self, **options: Any) -> Bucket:
        with environment_of(self.server.environment):
            return Bucket(self.place, **options)

    def store(self, **options: Any) -> ObjectStore:
        return ObjectStore(self.bucket(**options))

    def objects(self) -> list[str]:
        found = self.server.client.list_objects_v2(Bucket=BUCKET, Prefix=f"{self.place.prefix}/")
        return [each["Key"].removeprefix(f"{self.place.prefix}/") for each in found.get("Contents", ())]

    def read(self, key: str) -> bytes:
        content: bytes = self.server.client.get_object(Bucket=BUCKET, Key=f"{self.place.prefix}/{key}")["Body"].read()
        return content

    def write(self, key: str, content: bytes) -> None:
        self.server.client.put_object(Bucket=BUCKET, Key=f"{self.place.prefix}/{key}", Body=content)

    def flip(self, key: str, place: int = 100) -> None:
        content = bytearray(self.read(key))
        content[place] ^= 1
        self.write(key, bytes(content))


@contextmanager
def environment_of(environment: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def serving(folder: Path) -> Iterator[S3Server]:
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            server = S3Server(port)
            until(server.is_up, "S3 server")
            yield server
        finally:
            process.terminate()
            process.wait()
