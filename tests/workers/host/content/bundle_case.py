"""Bundles of small folders, a source of their chunks, and what a host does with them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.content.manifest import Manifest, encode
from muster.content.read import read_chunk, read_folder
from workers.host.content.chunks import Save
from workers.host.content.fetch import Fetch
from workers.host.content.places import Place
from workers.host.content.whole_copy import Limits

TENANT = "tnt_test"


@dataclass
class BundleSource:
    """What a store has. ``fetched``: digests in the order in which they were asked for, each time."""

    content: dict[str, bytes]
    manifest_bytes: bytes
    fetched: list[str] = field(default_factory=list)
    on_chunk: Callable[[str], None] = lambda _: None

    def manifest(self) -> bytes:
        return self.manifest_bytes

    def chunks(self, lacking: Mapping[str, int], save: Save) -> None:
        for digest in list(lacking):
            self.on_chunk(digest)
            self.fetched.append(digest)
            save(digest, self.content[digest])


def stored(folder: Path) -> tuple[str, Manifest, dict[str, bytes], bytes]:
    """Return a folder's digest, manifest, and all chunks."""
    bundle = read_folder(folder)
    chunks = {
        digest: read_chunk(folder, entry, number)
        for entry in bundle.manifest.entries
        if entry.kind <= 1
        for number, digest in enumerate(entry.parts)
    }
    return bundle.digest, bundle.manifest, chunks, encode(bundle.manifest)


def source_of(folder: Path) -> tuple[str, BundleSource]:
    digest, _, chunks, manifest = stored(folder)
    return digest, BundleSource(chunks, manifest)


def write_folder(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@dataclass
class HostDisk:
    """A host's state folder."""

    state_dir: Path
    limits: Limits = field(default_factory=lambda: Limits(cache_bytes=1 << 30, free_bytes=0))
    are_linked: bool = True

    def place(self, digest: str) -> Place:
        return Place(self.state_dir / "content", TENANT, digest)

    def fetch(self, digest: str, source: BundleSource, attempt: str = "att_1", **fields: object) -> Path:
        target = self.state_dir / "work" / attempt
        given = {"are_linked": self.are_linked, **fields}
        Fetch(self.place(digest), source, target, self.limits, **given).run()  # type: ignore[arg-type]  # as given
        return target


def content_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
