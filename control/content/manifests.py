"""Manifests as tenants send them: what the database needs of one, read in a process of its own where it is long.

A manifest of 100,000 files takes a second of Python. In a thread of the API it would take that second from every other
request, because one interpreter runs one thread at a time. So a long one is read by a child with a lower priority.

Run as ``python -m control.content.manifests``, it reads a manifest from its input and writes a ``Reading``.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from muster.content.faults import ManifestError
from muster.content.manifest import Kind, decode, digest_of
from muster.domain.errors import MalformedRequestError, ValidationFailedError

SHORT_BYTES: Final = 128 << 10
"""Up to here a manifest is read at once: it takes some 10 ms, and a child some 150 ms."""
CHILD_S: Final = 60.0
"""A manifest of the largest size takes a quarter of this on a slow machine."""
_NICE: Final = 10
_ROOT: Final = Path(__file__).resolve().parents[2]


class Reading(msgspec.Struct, frozen=True):
    """A manifest's digest, sums, and its different chunks: 32 bytes of each digest, and each size.

    ``paths``, ``path_sizes``: of its files, in their order. ``fault``: why it is no manifest; then the rest is empty.
    """

    digest: str = ""
    manifest_bytes: int = 0
    num_bytes: int = 0
    num_files: int = 0
    chunks: bytes = b""
    sizes: tuple[int, ...] = ()
    paths: tuple[str, ...] = ()
    path_sizes: tuple[int, ...] = ()
    fault: str | None = None


def read_manifest(content: bytes) -> Reading:
    """Return what the database needs of a manifest. Blocks; for a thread.

    Raises:
        ValidationFailedError: it is no manifest, or has a path that no folder has.
        MalformedRequestError: it cannot be read in time.
    """
    reading = reading_of(content) if len(content) <= SHORT_BYTES else _read_apart(content)
    if reading.fault is not None:
        raise ValidationFailedError.at("/", "no_manifest", reading.fault)
    return reading


def reading_of(content: bytes) -> Reading:
    """Return the reading of a manifest, in this process."""
    try:
        manifest = decode(content)
    except (ManifestError, RecursionError) as error:
        return Reading(fault=str(error) or "it is nested too deep")
    sizes = dict(manifest.chunks())
    files = [entry for entry in manifest.entries if entry.kind <= Kind.PROGRAM]
    return Reading(
        digest=digest_of(content),
        manifest_bytes=len(content),
        num_bytes=manifest.num_bytes,
        num_files=len(files),
        chunks=bytes.fromhex("".join(sizes)),
        sizes=tuple(sizes.values()),
        paths=tuple(entry.path for entry in files),
        path_sizes=tuple(entry.num_bytes for entry in files),
    )


def _read_apart(content: bytes) -> Reading:
    try:
        done = subprocess.run(  # our own interpreter and module
            [sys.executable, "-m", "control.content.manifests"],
            input=content,
            capture_output=True,
            timeout=CHILD_S,
            cwd=_ROOT,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise MalformedRequestError(f"the manifest cannot be read within {CHILD_S:.0f} s") from None
    return msgspec.msgpack.decode(done.stdout, type=Reading)


def main() -> None:
    os.nice(_NICE)
    reading = reading_of(sys.stdin.buffer.read())
    sys.stdout.buffer.write(msgspec.msgpack.encode(reading))


if __name__ == "__main__":
    main()
