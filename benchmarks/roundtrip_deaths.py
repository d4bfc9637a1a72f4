"""Deaths in a tenant's round trip: real processes are killed at failpoints, and the next ones continue.

Each case is asked to die at a point. It makes the work fresh, arms the point in one process, and requires that this was
killed there. Then it counts what is torn and offered for use nevertheless, before anything is repaired; lets the work
continue; and compares the result byte by byte with what it was made of, which counts too.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
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
from muster.store.faults import StoreError, StoreSlowError
from muster.store.keys import chunk_key, manifest_key
from workers.host.content import copies
from workers.host.content.fetch_order import FetchOrder
from workers.host.content.places import Place

KILLED: Final = -9
PATIENCE_S: Final = 120
ASK_AGAIN_S: Final = 0.2
MOST_NAMED: Final = 5
"""Files of a torn thing."""
Content = dict[str, bytes]
Points = Sequence[tuple[str, str]]


class TornError(Exception):
    """A folder lacks a part, or has other bytes. The text says which."""


class Case(Protocol):
    """``POINTS``: the process that dies, and its failpoint; ``{}`` is the number of its hit."""

    POINTS: ClassVar[Points]

    def die(self, process: str, point: str, number: int) -> list[str]:
        """Die for the ``number``-th time at a point. Return a sentence about each torn thing that was used."""


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


def stored(plane: Plane, tenant_id: TenantId, digest: str) -> Content:
    """Return what the store has of a folder.

    A store that does not answer is asked again: what no one can read now is not torn.

    Raises:
        TornError: a part is missing or wrong.
        StoreSlowError: there was no answer for a long time.
    """
    content = _read(plane, manifest_key(tenant_id, digest), MAX_MANIFEST_BYTES)
    if digest_of(content) != digest:
        raise TornError("its manifest has other bytes")
    try:
        manifest = decode(content)
    except ContentError as fault:
        raise TornError(f"its manifest is none: {fault}") from fault
    return {
        entry.path: entry.parts[0].encode()
        if entry.kind is Kind.LINK
        else b"".join(_read(plane, chunk_key(tenant_id, part), entry.num_bytes) for part in entry.parts)
        for entry in manifest.entries
        if entry.kind is not Kind.FOLDER
    }


def _read(plane: Plane, key: str, most_bytes: int) -> bytes:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return plane.store.read(key, most_bytes)
        except StoreSlowError:
            if time.monotonic() > until_s:
                raise
            time.sleep(ASK_AGAIN_S)
        except StoreError as fault:
            raise TornError(f"{key}: {fault.detail}") from fault


def torn(what: str, read: Callable[[], Content], wanted: Content, *, is_all: bool = True) -> list[str]:
    """Return a sentence about what is read, if it is not exactly ``wanted``, or not ``is_all`` and lacks of that."""
    try:
        found = read()
    except TornError as fault:
        return [f"{what}: {fault}"]
    faults = [f"{path} is missing" for path in wanted if path not in found]
    faults += [
        f"{path} has other bytes ({len(found[path]):,} of {len(content):,})"
        for path, content in wanted.items()
        if path in found and found[path] != content
    ]
    faults += [f"{path} is too much" for path in found if is_all and path not in wanted]
    more = f" and {len(faults) - MOST_NAMED} more" if len(faults) > MOST_NAMED else ""
    return [f"{what}: {', '.join(faults[:MOST_NAMED])}{more}"] if faults else []


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

    def die(self, process: str, point: str, number: int) -> list[str]:
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
        found = self._torn(member, digest, wanted)
        if (code := self._start(member, work).wait(PATIENCE_S)) != 0:
            raise RuntimeError(f"the upload that continues after {point} ended with {code}")
        with RestClient(plane.url, member.token) as client_of:
            if client_of.bundle(digest)["state"] != FolderState.COMPLETE:
                raise RuntimeError(f"the bundle is not complete after {point}")
        return found + self._differs("at the end", member, digest, wanted)

    def _start(self, member: Member, work: Path, failpoints: str = "") -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", WORDS, "upload", member.url, member.token, str(work)]
        return subprocess.Popen(  # noqa: S603  # our own module
            words, env={"PATH": os.environ["PATH"], "MUSTER_FAILPOINTS": failpoints}, stderr=subprocess.DEVNULL
        )

    def _torn(self, member: Member, digest: str, wanted: Content) -> list[str]:
        found = complete_folders(self._plane, member.tenant_id, FolderKind.BUNDLE)
        others = [f"bundle {one[:12]}, which no one uploaded, is given out" for one in found if one != digest]
        when = "given out after the kill"
        return others + (self._differs(when, member, digest, wanted) if digest in found else [])

    def _differs(self, when: str, member: Member, digest: str, wanted: Content) -> list[str]:
        read = partial(stored, self._plane, member.tenant_id, digest)
        return torn(f"bundle {digest[:12]}, {when}", read, wanted)


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

    def die(self, process: str, point: str, number: int) -> list[str]:
        del process
        order = self._part.order(self._part.host.folder / f"{point.partition('=')[0]}.{number}", self._bundle.digest)
        dies = start_fetch(order, failpoints=point)
        said, _ = dies.communicate(timeout=PATIENCE_S)
        require_killed(dies.returncode, point)
        found = self._torn(order) + reported_done(said)
        end_of(start_fetch(order))
        verify_folder(self._bundle.manifest, _place_of(order).copy)
        return found + torn("the work folder at the end", lambda: content_of(Path(order.folder)), self._wanted)

    def _torn(self, order: FetchOrder) -> list[str]:
        """Say whether the next process would use the copy though it is not whole."""
        place = _place_of(order)
        record = copies.record_of(place)
        is_given_out = record is not None and record.is_whole and place.copy.is_dir()
        return why_not_whole("the host's copy after the kill", place) if is_given_out else []


def reported_done(printed: str) -> list[str]:
    """Say whether a process that was killed had reported that it is done."""
    return [f"the killed process reported that it is done: {printed[-200:]!r}"] if "is_done" in printed else []


def why_not_whole(what: str, place: Place) -> list[str]:
    """Say whether the copy has other than exactly the files of its manifest, byte by byte."""
    manifest = copies.manifest_of(place)
    if manifest is None:
        return [f"{what}: it has no manifest"]
    try:
        verify_folder(manifest, place.copy)
    except ContentError as fault:
        return [f"{what}: {fault}"]
    return []


def _place_of(order: FetchOrder) -> Place:
    return Place(Path(order.content_dir), order.tenant_id, order.digest)
