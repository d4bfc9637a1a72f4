"""Manifest of a generation: the state of training, and size and SHA-256 of each file. It is JSON, never a pickle."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any

SCHEMA = 1
"""First schema, also of a manifest that names none."""
ENCRYPTED_SCHEMA = 2
"""Schema of encrypted checkpoints: a runtime which cannot decrypt skips them, and does not treat them as damaged."""
SHARDED_EXTRAS_SCHEMA = 3
"""Schema of checkpoints with sharded extras: a runtime which does not know the pieces does not restore without them."""
OWN_TENSORS_SCHEMA = 4
"""Schema of checkpoints with tensors that are each rank's own: a runtime which does not know them does not restore
without them."""
STREAMS_SCHEMA = 5
"""Schema of checkpoints with sample streams: a runtime which does not know them would draw their samples again."""
NEWEST_SCHEMA = STREAMS_SCHEMA
MANIFEST = "MANIFEST.json"
MOST_MANIFEST_BYTES = 256 << 20
"""Most bytes of a manifest that are read: enough for a million ranks."""


class UnusableError(Exception):
    """Reason in one sentence why a generation must not be used.

    ``is_damage``: it is not as it was saved, wherever it is read. Otherwise it could not be read here and now.
    ``is_missing``: a file is absent, perhaps because a mount is, or because the generation is being removed.
    """

    def __init__(self, why: str, *, is_damage: bool = True, is_missing: bool = False) -> None:
        super().__init__(why)
        self.is_damage = is_damage
        self.is_missing = is_missing


@dataclass(frozen=True)
class FileRecord:
    """One file as it was staged: hashed before it was written, so that damage during the write shows too.

    ``rng_sha256``: of the rank's own random numbers in it (``rng``); None if an older runtime wrote it.
    """

    name: str
    rank: int
    size: int
    sha256: str
    rng_sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Manifest of one generation.

    ``position`` counts the samples that all ranks have seen; ``longest_save_s`` is the longest time of a save.
    ``loss_spread``: the deviation of the losses before it; None if too few were reported, or an older runtime made it.
    ``key_id``: the key under which its files are encrypted; None: they are not encrypted. Sizes and SHA-256 are of the
    stored bytes. ``lineage``: its origin (``muster.train.checkpoint.lineage``); None if an older runtime made it.
    ``has_sharded_extras``: its files hold pieces of extras (``extra_pieces``). ``has_own_tensors``: they hold tensors
    that are each rank's own (``own_tensors``). ``streams``: the state of each sample stream by name
    (``muster.train.data.streams``). ``file_sha256``: hash of the manifest's own file if it was read from
    one; the file does not hold it.
    """

    step: int
    fence: int
    attempt_id: str
    committed_at_unix_ms: int
    world_size: int
    position: int
    torch_version: str
    loss: float | None
    longest_save_s: float
    files: tuple[FileRecord, ...]
    loss_spread: float | None = None
    key_id: str | None = None
    lineage: dict[str, Any] | None = None
    has_sharded_extras: bool = False
    has_own_tensors: bool = False
    streams: dict[str, Any] = field(default_factory=dict)
    file_sha256: str = field(default="", compare=False)

    @property
    def schema(self) -> int:
        """The lowest schema with which a reader understands this manifest, so that older runtimes use it if
        they can.
        """
        if self.streams:
            return STREAMS_SCHEMA
        if self.has_own_tensors:
            return OWN_TENSORS_SCHEMA
        if self.has_sharded_extras:
            return SHARDED_EXTRAS_SCHEMA
        return SCHEMA if self.key_id is None else ENCRYPTED_SCHEMA

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)


def dump(manifest: Manifest) -> bytes:
    body = {"schema": manifest.schema, **asdict(manifest)}
    del body["file_sha256"]
    return json.dumps({**body, "self_sha256": _self_hash(body)}, sort_keys=True).encode()


def parse(content: bytes) -> Manifest:
    """Parse a manifest. Fields that a newer runtime added are ignored; a manifest of an unknown schema is not read.

    The schema is checked after the manifest's own hash, which every schema has alike: so a flipped bit in the schema
    counts as damage, not as a newer runtime.

    Raises:
        UnusableError: it is torn, was changed, is not a manifest, or of a newer schema (which is no damage).
    """
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as fault:
        raise UnusableError(f"{MANIFEST} is not JSON") from fault
    if not isinstance(document, dict):
        raise UnusableError(f"{MANIFEST} is no JSON object")
    told = document.pop("self_sha256", None)
    if told != _self_hash(document):
        raise UnusableError(f"{MANIFEST} was changed after it was written")
    schema = document.get("schema", SCHEMA)
    if schema not in range(SCHEMA, NEWEST_SCHEMA + 1):
        raise UnusableError(
            f"{MANIFEST} is of schema {schema!r}, and this muster.train reads {SCHEMA} to {NEWEST_SCHEMA}: "
            "a newer one saved it, and can use it",
            is_damage=False,
        )
    return replace(_of(document), file_sha256=hashlib.sha256(content).hexdigest())


def _of(document: dict[str, Any]) -> Manifest:
    try:
        files = tuple(
            FileRecord(file["name"], file["rank"], file["size"], file["sha256"], file.get("rng_sha256"))
            for file in document["files"]
        )
        known = {
            each.name: document[each.name]
            for each in fields(Manifest)
            if each.name in document or (each.default is MISSING and each.default_factory is MISSING)
        }
    except (KeyError, TypeError) as fault:
        raise UnusableError(f"{MANIFEST} lacks {fault}") from fault
    manifest = Manifest(**{**known, "files": files})
    if [file.rank for file in files] != list(range(manifest.world_size)):
        raise UnusableError(f"{MANIFEST} does not name one file for each of {manifest.world_size} ranks")
    if any(file.name != file_name(file.rank) for file in files):
        raise UnusableError(f"{MANIFEST} names a file that is not ours")
    return manifest


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.pt"


def _self_hash(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
