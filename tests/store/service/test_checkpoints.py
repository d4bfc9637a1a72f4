"""Files of checkpoints by signed addresses: read from the operator's folders, and from nowhere else."""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from muster.domain.ids import TenantId
from muster.store.objects import DOWNLOAD_S
from muster.store.service.checkpoints import MANIFEST
from tests.store.stores import TENANT, Store, motos, now, our_store

OWNER = TenantId(TENANT)
JOB = f"job_{'0' * 26}"
NAME = f"{JOB}/step-00000040/gen-3"
PARTS = {"rank-00000.pt": os.urandom(70_000), "rank-00001.pt": os.urandom(512)}


@dataclass
class Served:
    """A process that reads the checkpoints below ``root``."""

    store: Store
    url: str
    root: Path

    def save(self, folder: str = NAME, **more: object) -> str:
        """Write a checkpoint as the runtime does, and return its manifest's digest."""
        place = self.root / folder
        place.mkdir(parents=True)
        for name, content in PARTS.items():
            (place / name).write_bytes(content)
        files = [{"name": name, "size": len(content)} for name, content in PARTS.items()]
        manifest = json.dumps({"files": files, **more}).encode()
        (place / MANIFEST).write_bytes(manifest)
        return hashlib.sha256(manifest).hexdigest()

    def link(self, manifest: str, name: str | None, folder: str = NAME, *, seconds_ago: float = 0) -> str:
        objects = self.store.objects(store_gateway_url=self.url)
        signed_at = now() - timedelta(seconds=seconds_ago)
        return objects.checkpoint(OWNER, manifest, folder, name, signed_at, saved_as="saved.tar").url

    def get(self, manifest: str, name: str | None, folder: str = NAME, **headers: str) -> httpx.Response:
        return self.store.client.get(self.link(manifest, name, folder), headers=headers)


@pytest.fixture(name="served", params=["serve", "gateway"])
def fixture_served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """Our own store, and the process in front of another one."""
    root = tmp_path / "checkpoints"
    root.mkdir()
    process = our_store(tmp_path / "own", MUSTER_STORE_CHECKPOINT_DIRS=f"/nowhere,{root}")
    if request.param == "gateway":
        (tmp_path / "moto").mkdir()
        with motos(tmp_path / "moto") as other:
            process.key_file.write_bytes(other.key_file.read_bytes())
            process.variables["MUSTER_STORE_URL"] = other.url
            process.words = ("store", "gateway")
            process.start()
            yield Served(process, process.url, root)
    else:
        process.start()
        yield Served(process, process.url, root)
    process.close()


def test_a_file_is_read_whole_and_by_ranges(served: Served) -> None:
    manifest = served.save()
    for name, content in PARTS.items():
        whole = served.get(manifest, name)
        assert (whole.status_code, whole.content) == (200, content), whole.text
        assert whole.headers["content-security-policy"].startswith("sandbox")
        part = served.get(manifest, name, range="bytes=7-99")
        assert (part.status_code, part.content) == (206, content[7:100])
        assert served.get(manifest, name, str(served.root / NAME)).content == content, "by an absolute path as well"
    assert hashlib.sha256(served.get(manifest, MANIFEST).content).hexdigest() == manifest
    assert served.get(manifest, "rank-00002.pt").status_code == 404
    assert served.get(manifest, f"../gen-3/{MANIFEST}").status_code == 404


def test_all_of_it_is_one_archive_with_ranges(served: Served) -> None:
    manifest = served.save()
    whole = served.get(manifest, None)
    assert whole.headers["content-disposition"].startswith('attachment; filename="saved.tar"')
    with tarfile.open(fileobj=io.BytesIO(whole.content)) as archive:
        names = archive.getnames()
        found = {Path(name).name: archive.extractfile(name) for name in names}
        assert all(name.startswith("step-00000040/gen-3/") for name in names)
        assert names[-1].endswith(MANIFEST), "without it nothing takes the rest for a checkpoint"
        assert {name: file.read() for name, file in found.items() if file and name != MANIFEST} == PARTS
    for first, last in ((0, 10), (511, 513), (300, 71_500), (len(whole.content) - 9, len(whole.content) - 1)):
        part = served.get(manifest, None, range=f"bytes={first}-{last}")
        assert (part.status_code, part.content) == (206, whole.content[first : last + 1])


def test_an_address_leads_to_that_checkpoint_alone_and_for_an_hour(served: Served) -> None:
    manifest = served.save()
    link = served.link(manifest, "rank-00000.pt")
    get = served.store.client.get
    assert get(link.replace("rank-00000.pt", "rank-00001.pt")).status_code == 403
    assert get(link.replace("gen-3", "gen-4")).status_code == 403
    assert get(served.link(manifest, "rank-00000.pt", seconds_ago=DOWNLOAD_S + 1)).status_code == 403
    (served.root / NAME / MANIFEST).write_text('{"files": []}')
    changed = served.get(manifest, "rank-00000.pt")
    assert changed.status_code == 404
    assert "not the one that the job reported" in changed.text


def test_nothing_is_read_outside_of_the_operators_folders(served: Served, tmp_path: Path) -> None:
    elsewhere = Served(served.store, served.url, tmp_path / "elsewhere")
    manifest = elsewhere.save()
    for folder in (str(elsewhere.root / NAME), f"../elsewhere/{NAME}", f"{served.root}/../elsewhere/{NAME}", "", "/"):
        assert served.get(manifest, "rank-00000.pt", folder).status_code == 404, folder


def test_no_link_and_no_file_of_another_is_followed(served: Served, tmp_path: Path) -> None:
    elsewhere = Served(served.store, served.url, tmp_path / "elsewhere")
    manifest = elsewhere.save()
    (served.root / JOB).symlink_to(elsewhere.root / JOB)
    refused = served.get(manifest, "rank-00000.pt")
    assert refused.status_code == 403, "a folder that is a link"
    (served.root / JOB).unlink()
    assert served.save() == manifest
    secret = tmp_path / "secret"
    secret.write_bytes(PARTS["rank-00000.pt"])
    place = served.root / NAME / "rank-00000.pt"
    place.unlink()
    place.symlink_to(secret)
    assert served.get(manifest, "rank-00000.pt").status_code == 403, "a file that is a link"
    place.unlink()
    os.mkfifo(place)
    assert served.get(manifest, "rank-00000.pt").status_code == 403, "a pipe, for which nothing waits"
    place.unlink()
    place.write_bytes(b"shorter")
    assert served.get(manifest, "rank-00000.pt").status_code == 404, "another size"
    if os.geteuid() == 0:
        place.write_bytes(PARTS["rank-00000.pt"])
        os.chown(place, 12345, 12345)
        assert served.get(manifest, "rank-00000.pt").status_code == 404, "another one's file"


def test_a_file_that_is_gone_cuts_the_archive(served: Served) -> None:
    manifest = served.save()
    (served.root / NAME / "rank-00001.pt").unlink()
    with pytest.raises(httpx.RemoteProtocolError):
        served.get(manifest, None)


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ('[{"name": "../rank-00000.pt", "size": 1}]', 403),
        ('[{"name": "rank-00000.pt", "size": 1}, {"name": "rank-00000.pt", "size": 1}]', 403),
        ('[{"name": "rank-00000.pt", "size": Infinity}]', 403),
        (f'[{{"name": "rank-00000.pt", "size": {1 << 63}}}]', 403),
        (f"[{'[],' * (1 << 19)}0]", 501),
    ],
    ids=["outside", "twice", "no number", "no size", "too many values"],
)
def test_a_manifest_that_no_runtime_writes_is_refused(served: Served, files: str, status: int) -> None:
    served.save()
    content = f'{{"files": {files}}}'.encode()
    (served.root / NAME / MANIFEST).write_bytes(content)
    manifest = hashlib.sha256(content).hexdigest()
    for name in (MANIFEST, "rank-00000.pt", None):
        assert served.get(manifest, name).status_code == status
