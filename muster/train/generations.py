"""Generations of a checkpoint on disk: named by step and fence, complete or not there, read only once verified.

``<folder>/step-00000040/gen-4294967299/`` holds one file a rank and ``MANIFEST.json`` with the size and SHA-256 of
each. It is written as ``.gen-….partial`` and renamed when all of it is on disk, so a torn one has no name; it is never
written to again. ``FENCE`` holds the highest fence that has begun. Nothing here unpickles anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA = 1
MANIFEST = "MANIFEST.json"
FENCE = "FENCE"
_NAME = re.compile(r"step-(\d{1,18})/gen-(\d{1,20})")
_READ_BYTES = 1 << 20


class UnusableError(Exception):
    """Why a generation is not to be used, in one sentence."""


@dataclass(frozen=True)
class FileRecord:
    """One file as it was staged: hashed before it was written, so that damage on the way shows too."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, order=True)
class Generation:
    step: int
    fence: int

    @property
    def name(self) -> str:
        return f"step-{self.step:08d}/gen-{self.fence}"

    @classmethod
    def named(cls, name: str) -> Generation | None:
        found = _NAME.fullmatch(name)
        return None if found is None else cls(int(found[1]), int(found[2]))


def list_generations(folder: Path) -> list[Generation]:
    """Those that are complete by name, the newest first."""
    found = [
        generation
        for path in folder.glob("step-*/gen-*")
        if (generation := Generation.named(f"{path.parent.name}/{path.name}")) is not None
        and path == folder / generation.name
    ]
    return sorted(found, reverse=True)


def candidates(found: Sequence[Generation], wanted: str | None, refused: frozenset[str]) -> list[Generation]:
    """Which to try, in order: the wanted one, then what is older. Without a wish, all. Never what is refused."""
    chosen = None if wanted is None else Generation.named(wanted)
    allowed = [generation for generation in found if generation.name not in refused]
    return [generation for generation in allowed if chosen is None or generation <= chosen]


def partial_folder(folder: Path, generation: Generation) -> Path:
    """An empty place for a generation that is being written; what a crash left there is removed."""
    place = folder / f"step-{generation.step:08d}" / f".gen-{generation.fence}.partial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def write_file(place: Path, name: str, content: bytes) -> FileRecord:
    """Raises OSError, such as a full disk."""
    write_durably(place / name, content)
    return FileRecord(name, len(content), hashlib.sha256(content).hexdigest())


def commit(folder: Path, generation: Generation, files: Sequence[FileRecord], facts: dict[str, Any]) -> tuple[int, str]:
    """Give the partial generation its name. Returns when (Unix milliseconds) and the manifest's SHA-256.

    Raises:
        UnusableError: a newer attempt has begun, or this generation exists already.
        OSError: the disk.
    """
    partial = folder / f"step-{generation.step:08d}" / f".gen-{generation.fence}.partial"
    final = folder / generation.name
    at_unix_ms = time.time_ns() // 1_000_000
    body = {
        "schema": SCHEMA,
        "step": generation.step,
        "fence": generation.fence,
        "committed_at_unix_ms": at_unix_ms,
        "files": [{"name": file.name, "size": file.size, "sha256": file.sha256} for file in files],
        **facts,
    }
    content = json.dumps({**body, "self_sha256": _self_hash(body)}, sort_keys=True).encode()
    write_durably(partial / MANIFEST, content)
    sync_folder(partial)
    if highest_fence(folder) > generation.fence:
        raise UnusableError("a newer attempt of this job has begun")
    if final.exists():
        raise UnusableError(f"{generation.name} exists already")
    partial.rename(final)
    sync_folder(final.parent)
    sync_folder(folder)
    return at_unix_ms, hashlib.sha256(content).hexdigest()


def verify(folder: Path, generation: Generation) -> dict[str, Any]:
    """The manifest, after every file was read back equal to it.

    Raises:
        UnusableError: anything is missing, of another size, or differs in one byte.
    """
    place = folder / generation.name
    manifest = read_manifest(place)
    if (manifest["step"], manifest["fence"]) != (generation.step, generation.fence):
        raise UnusableError(f"its {MANIFEST} is about step {manifest['step']}, fence {manifest['fence']}")
    for file in manifest["files"]:
        _verify_file(place, file)
    return manifest


def read_manifest(place: Path) -> dict[str, Any]:
    try:
        document = json.loads((place / MANIFEST).read_bytes())
    except OSError as fault:
        raise UnusableError(f"{MANIFEST} cannot be read: {fault.strerror}") from fault
    except ValueError as fault:
        raise UnusableError(f"{MANIFEST} is not JSON") from fault
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UnusableError(f"{MANIFEST} is of another schema")
    told = document.pop("self_sha256", None)
    if told != _self_hash(document):
        raise UnusableError(f"{MANIFEST} was changed after it was written")
    return document


def _verify_file(place: Path, file: dict[str, Any]) -> None:
    digest, size = hashlib.sha256(), 0
    try:
        with (place / file["name"]).open("rb") as content:
            while piece := content.read(_READ_BYTES):
                digest.update(piece)
                size += len(piece)
    except OSError as fault:
        raise UnusableError(f"{file['name']} cannot be read: {fault.strerror}") from fault
    if size != file["size"]:
        raise UnusableError(f"{file['name']} holds {size} bytes instead of {file['size']}")
    if digest.hexdigest() != file["sha256"]:
        raise UnusableError(f"{file['name']} differs from what was saved")


def _self_hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def highest_fence(folder: Path) -> int:
    """0 where no attempt has begun yet. Raises UnusableError for what is no number."""
    try:
        text = (folder / FENCE).read_text(encoding="ascii")
    except FileNotFoundError:
        return 0
    try:
        return int(text)
    except ValueError as fault:
        raise UnusableError(f"{FENCE} holds no number") from fault


def raise_fence(folder: Path, fence: int) -> bool:
    """Begin under ``fence``. False where a newer attempt has begun."""
    folder.mkdir(parents=True, exist_ok=True)
    if highest_fence(folder) > fence:
        return False
    write_durably(folder / FENCE, str(fence).encode())
    sync_folder(folder)
    return True


def retain(folder: Path, keep: int, *, verified: frozenset[str], refused: frozenset[str]) -> list[Generation]:
    """Remove all but the newest ``keep``, and never the newest verified one. Returns what went.

    What is refused counts for nothing and goes too, once there is a verified one to go on from. The manifest goes
    first: what is left half removed after a crash does not verify.
    """
    found = list_generations(folder)
    allowed = [generation for generation in found if generation.name not in refused]
    newest_verified = next((generation for generation in allowed if generation.name in verified), None)
    gone = [generation for generation in allowed[keep:] if generation != newest_verified]
    if newest_verified is not None:
        gone += [generation for generation in found if generation.name in refused]
    for generation in gone:
        place = folder / generation.name
        (place / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        with contextlib.suppress(OSError):  # another generation of that step is still there
            place.parent.rmdir()
    return gone


def write_durably(path: Path, content: bytes) -> None:
    """Whole or not at all, and on disk when this returns."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
