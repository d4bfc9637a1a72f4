"""Deaths in a tenant's round trip: real processes are killed at failpoints, and the next ones continue.

Each case is asked to die at a point. It makes the work fresh, arms the point in one process, and requires that this was
killed there. Then it counts what is torn and offered for use nevertheless, before anything is repaired; lets the work
continue; and compares the result byte by byte with what it was made of, which counts too.
"""

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol

from sqlalchemy import select

from benchmarks.roundtrip_child import WORDS
from benchmarks.roundtrip_plane import API, STORE, Member, Plane, end_of, start_fetch
from muster.client.rest import RestClient
from muster.content.faults import ContentError
from muster.content.manifest import MAX_MANIFEST_BYTES, Kind, decode, digest_of
from muster.content.read import read_folder
from muster.content.tree import verify_folder
from muster.db.models import StoredFolder
from muster.domain.ids import TenantId
from muster.domain.stored_content import FolderKind, FolderState
from muster.store.faults import StoreError
from muster.store.keys import chunk_key, manifest_key
from workers.host.content import copies
from workers.host.content.fetch_order import FetchOrder
from workers.host.content.places import Place

KILLED: Final = -9
PATIENCE_S: Final = 120
Content = dict[str, bytes]
Points = Sequence[tuple[str, str]]


class Case(Protocol):
    """``POINTS``: the process that dies, and its failpoint; ``{}`` is the number of its hit."""

    POINTS: ClassVar[Points]

    def die(self, process: str, point: str, number: int) -> int:
        """Die for the ``number``-th time at a point. Return how many torn things were used."""


def content_of(folder: Path) -> Content:
    """Return all files and links of a folder."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def fill_work(folder: Path, seed: str) -> Content:
    """Make a work folder of few chunks: small files, one of three chunks, a program, a link. Return its content."""
    chance = random.Random(seed)  # noqa: S311  # repeats
    for name in ("main.py", "package/one.py", "package/deep/two.py", "data/large", "run"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(9 << 20 if name == "data/large" else 1000 + chance.randrange(200_000)))
    (folder / "run").chmod(0o755)
    (folder / "newest").symlink_to("data/large")
    return content_of(folder)


def stored(plane: Plane, tenant_id: TenantId, digest: str) -> Content | None:
    """Return what the store has of a folder; None: a part is missing or wrong."""
    try:
        content = plane.store.read(manifest_key(tenant_id, digest), MAX_MANIFEST_BYTES)
        manifest = decode(content) if digest_of(content) == digest else None
        if manifest is None:
            return None
        return {
            entry.path: entry.parts[0].encode()
            if entry.kind is Kind.LINK
            else b"".join(plane.store.read(chunk_key(tenant_id, part), entry.num_bytes) for part in entry.parts)
            for entry in manifest.entries
            if entry.kind is not Kind.FOLDER
        }
    except (StoreError, ContentError):
        return None


def complete_folders(plane: Plane, tenant_id: TenantId, kind: FolderKind) -> list[str]:
    """Return the digests of the folders that the control plane gives out as whole."""
    query = select(StoredFolder.digest).where(
        StoredFolder.tenant_id == tenant_id, StoredFolder.kind == kind, StoredFolder.state == FolderState.COMPLETE
    )
    with plane.units.read() as session:
        return list(session.scalars(query))


def require_killed(code: int | None, point: str) -> None:
    if code != KILLED:
        raise RuntimeError(f"{point} was not met: the process ended with {code}")


class UploadDeaths:
    """A client uploads a work folder; it, the API or the store is killed, and the client runs again."""

    POINTS: ClassVar[Points] = (
        (API, "bundle.begin.after_commit=kill"),
        (STORE, "store.put.in_body=kill@{}"),
        (STORE, "store.put.before_rename=kill@{}"),
        ("client", "upload.in_upload=kill"),
        (API, "bundle.confirm.after_commit=kill"),
    )

    def __init__(self, plane: Plane, folder: Path) -> None:
        self._plane, self._folder = plane, folder

    def die(self, process: str, point: str, number: int) -> int:
        plane, member = self._plane, self._plane.new_member()
        work = self._folder / f"{point.partition('=')[0]}.{number}"
        wanted = fill_work(work, f"{point} {number}")
        digest = read_folder(work).digest
        if process == "client":
            require_killed(self._start(member, work, point).wait(PATIENCE_S), point)
        else:
            plane.start(process, point)
            with self._start(member, work) as client:
                plane.wait_killed(process, PATIENCE_S)
                client.kill()
            plane.start(process)
        num_torn = self._torn(member, digest, wanted)
        if (code := self._start(member, work).wait(PATIENCE_S)) != 0:
            raise RuntimeError(f"the upload that continues after {point} ended with {code}")
        with RestClient(plane.url, member.token) as client_of:
            if client_of.bundle(digest)["state"] != FolderState.COMPLETE:
                raise RuntimeError(f"the bundle is not complete after {point}")
        return num_torn + (stored(plane, member.tenant_id, digest) != wanted)

    def _start(self, member: Member, work: Path, failpoints: str = "") -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", WORDS, "upload", member.url, member.token, str(work)]
        return subprocess.Popen(  # noqa: S603  # our own module
            words, env={"PATH": os.environ["PATH"], "MUSTER_FAILPOINTS": failpoints}, stderr=subprocess.DEVNULL
        )

    def _torn(self, member: Member, digest: str, wanted: Content) -> int:
        found = complete_folders(self._plane, member.tenant_id, FolderKind.BUNDLE)
        return sum(one != digest or stored(self._plane, member.tenant_id, one) != wanted for one in found)


class FetchDeaths:
    """A host fetches a bundle for an attempt; the process is killed, and the next one continues."""

    POINTS: ClassVar[Points] = (
        ("fetch", "fetch.after_manifest=kill"),
        ("fetch", "fetch.after_chunk=kill@{}"),
        ("fetch", "fetch.before_publish=kill"),
        ("fetch", "fetch.after_publish=kill"),
        ("fetch", "fetch.in_work_folder=kill"),
    )

    def __init__(self, plane: Plane, folder: Path) -> None:
        member = plane.new_member()
        self._wanted = fill_work(folder / "own", "fetch")
        self._bundle = member.upload(folder / "own")
        [self._part] = plane.parts(member, self._bundle.digest)

    def die(self, process: str, point: str, number: int) -> int:
        del process
        order = self._part.order(self._part.host.folder / f"{point.partition('=')[0]}.{number}", self._bundle.digest)
        dies = start_fetch(order, failpoints=point)
        said, _ = dies.communicate(timeout=PATIENCE_S)
        require_killed(dies.returncode, point)
        num_torn = self._torn(order) + ("is_done" in said)
        end_of(start_fetch(order))
        verify_folder(self._bundle.manifest, _place_of(order).copy)
        return num_torn + (content_of(Path(order.folder)) != self._wanted)

    def _torn(self, order: FetchOrder) -> int:
        """Return whether the next process would use the copy though it is not whole."""
        place = _place_of(order)
        record = copies.record_of(place)
        is_given_out = record is not None and record.is_whole and place.copy.is_dir()
        return is_given_out and not is_whole(place)


def is_whole(place: Place) -> bool:
    """Return whether the copy has exactly the files of its manifest, byte by byte."""
    manifest = copies.manifest_of(place)
    try:
        if manifest is not None:
            verify_folder(manifest, place.copy)
    except ContentError:
        return False
    return manifest is not None


def _place_of(order: FetchOrder) -> Place:
    return Place(Path(order.content_dir), order.tenant_id, order.digest)
