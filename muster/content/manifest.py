"""The manifest of a folder: its files by path, each as chunks by digest. Its own digest names the folder.

A manifest is one JSON array, the same bytes for the same folder on each machine::

    [1, [["data", 3, 0, []], ["train.py", 0, 1371, ["9f86…"]], ["tool", 1, 52, ["60303…"]], ["now", 2, 0, ["v1"]]]]

Owners, times and permission bits other than that of execution stand in no manifest: they differ between two checkouts
of one commit.
"""

import enum
import hashlib
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from muster.content.faults import ManifestError, shown

VERSION: Final = 1
CHUNK_BYTES: Final = 4 << 20
"""Bytes of a chunk. Only the last chunk of a file has fewer."""
MAX_MANIFEST_BYTES: Final = 256 << 20
MAX_PATH_BYTES: Final = 4096
MAX_NAME_BYTES: Final = 255
_DIGEST: Final = frozenset("0123456789abcdef")


class Kind(enum.IntEnum):
    FILE = 0
    PROGRAM = 1
    """A file that may be executed."""
    LINK = 2
    """A symbolic link to another path of the folder; its one part is the target."""
    FOLDER = 3
    """A folder with nothing in it; others are made by their files."""


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One path. ``parts``: SHA-256 of each chunk in hexadecimal digits; of a link, its target."""

    path: str
    kind: Kind
    num_bytes: int
    parts: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: Literal[1]
    entries: tuple[Entry, ...]
    """Sorted by path, each path once."""

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.entries)

    def chunks(self) -> Iterator[tuple[str, int]]:
        """Yield each different chunk once, as digest and number of bytes, in the order of the files."""
        met: set[str] = set()
        for entry in self.entries:
            if entry.kind > Kind.PROGRAM:
                continue
            for digest, num_bytes in _sizes_in(entry):
                if digest not in met:
                    met.add(digest)
                    yield digest, num_bytes


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of ``content`` in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(content: bytes) -> Manifest:
    """Return the manifest, which writes to no path outside of its folder.

    Raises ManifestError: it is no manifest, has another version, or is one that no work folder has.
    """
    if len(content) > MAX_MANIFEST_BYTES:
        raise ManifestError(f"the manifest has {len(content):,} bytes, and {MAX_MANIFEST_BYTES:,} are accepted")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ManifestError(f"it is no manifest of version {VERSION}: {error}") from error
    _check(manifest.entries)
    return manifest


def path_fault(path: str) -> str | None:
    """Return why a path cannot stand in a manifest; None if it can."""
    faults = (name_fault(name, path) for name in path.split("/"))
    return next((fault for fault in faults if fault is not None), None)


def name_fault(name: str, path: str) -> str | None:
    """Return why the path ``path`` cannot stand in a manifest because of ``name``, one of its parts."""
    if name in {"", ".", ".."}:
        return "it is no plain path inside of the folder"
    if not name.isprintable():
        return "its name has a control character, or is not UTF-8"
    # A character has at most four bytes: the usual path needs no exact count.
    if len(path) * 4 > MAX_PATH_BYTES and len(path.encode()) > MAX_PATH_BYTES:
        return f"its path is longer than {MAX_PATH_BYTES} bytes"
    if len(name) * 4 > MAX_NAME_BYTES and len(name.encode()) > MAX_NAME_BYTES:
        return f"its name is longer than {MAX_NAME_BYTES} bytes"
    return None


def link_fault(path: str, target: str) -> str | None:
    """Return why a link cannot stand in a manifest: its target must lie inside of the folder. None if it can."""
    if not target or target.startswith("/") or not target.isprintable():
        return "it leads to an absolute path, and hosts have no such file of yours"
    names = [name for name in target.split("/") if name not in {"", "."}]
    num_up = next((at for at, name in enumerate(names) if name != ".."), len(names))
    if num_up > path.count("/"):
        return "it leads out of the folder"
    # Past another link, `..` is not the folder that the text says: only at the beginning is it safe.
    return "its target has `..` behind a name" if ".." in names[num_up:] else None


def _check(entries: tuple[Entry, ...]) -> None:
    """Raise ManifestError unless a folder can have exactly these entries."""
    before = ""
    leaves: set[str] = set()
    sizes: dict[str, int] = {}
    for entry in entries:
        fault = path_fault(entry.path) or _fault_of(entry) or _size_fault(entry, sizes)
        if fault is None and entry.path <= before:
            fault = "its path does not stand in the order of paths, or stands twice"
        if fault is None and not leaves.isdisjoint(_above(entry.path)):
            fault = "it is below a path that is no folder"
        if fault is not None:
            raise ManifestError(f"{shown(entry.path)}: {fault}")
        before = entry.path
        leaves.add(entry.path)


def _size_fault(entry: Entry, sizes: dict[str, int]) -> str | None:
    """Return whether a chunk has another size than before. ``sizes``: of chunks so far; the entry's are added.

    What a tenant stores, and what a host has to keep, is counted by the sizes that stand here.
    """
    if entry.kind <= Kind.PROGRAM:
        for digest, num_bytes in _sizes_in(entry):
            if sizes.setdefault(digest, num_bytes) != num_bytes:
                return "its chunk has two sizes"
    return None


def _sizes_in(entry: Entry) -> Iterator[tuple[str, int]]:
    for number, digest in enumerate(entry.parts):
        yield digest, min(CHUNK_BYTES, entry.num_bytes - number * CHUNK_BYTES)


def _above(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        yield path[:at]
        at = path.rfind("/", 0, at)


def _fault_of(entry: Entry) -> str | None:
    if entry.kind is Kind.LINK:
        return "a link has one target" if len(entry.parts) != 1 else link_fault(entry.path, entry.parts[0])
    if entry.kind is Kind.FOLDER:
        return "a folder has no content" if entry.parts or entry.num_bytes else None
    if entry.num_bytes < 0 or len(entry.parts) != -(-entry.num_bytes // CHUNK_BYTES):
        return f"{len(entry.parts)} chunks do not make {entry.num_bytes:,} bytes"
    if any(len(part) != 64 or not _DIGEST.issuperset(part) for part in entry.parts):
        return "a chunk's name is no SHA-256 in hexadecimal digits"
    return None
