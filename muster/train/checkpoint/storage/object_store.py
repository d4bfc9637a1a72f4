"""Generations in an object store, which has no rename: a generation exists from the moment its manifest does.

The keys are a folder's (``generations``), so a copy of them on a disk is one. Each rank puts its file under the
generation's own prefix, and rank 0 the manifest last, on condition that there is none: what has no manifest was never
committed. ``FENCE/<number>`` objects name the attempts that have begun, since a fence is raised without a lock: an
attempt puts its own and then checks whether there is a higher one, so of two at once the higher continues. This relies
on reads that see every earlier write, as S3 and similar stores guarantee.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import re
from typing import TYPE_CHECKING

from muster.train.checkpoint import generations, manifest, skipped_ranges
from muster.train.checkpoint.fences import FENCE, StaleFenceError
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST, MOST_MANIFEST_BYTES, FileRecord, Manifest, UnusableError
from muster.train.checkpoint.retention import GOOD, READ
from muster.train.checkpoint.save_faults import Place
from muster.train.checkpoint.storage.late_files import LATE_ELSEWHERE_S
from muster.train.checkpoint.storage.uploads import Upload
from muster.train.runtime.durable_files import HashingFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from muster.train.checkpoint.generations import Pacing
    from muster.train.checkpoint.storage.bucket import Bucket

_KEY = re.compile(r"(step-\d+/gen-\d+)/([^/]+)")
_SKIPPED = re.compile(rf"{skipped_ranges.NAME}/(\d{{20}})")
_FENCE = re.compile(rf"{FENCE}/(\d{{20}})")


class ObjectStore:
    """Store of one job's generations under one prefix. ``stores`` describes what a ``Store`` guarantees."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def __str__(self) -> str:
        return str(self._bucket.place)

    @property
    def place(self) -> Place:
        return Place(f"s3://{self._bucket.place.bucket}", is_shared=True)

    @property
    def late_s(self) -> float:
        return LATE_ELSEWHERE_S

    def begin(self, fence: int | None) -> int:
        chosen = fence
        while chosen is None:
            following = self.highest_fence() + 1
            with contextlib.suppress(FileExistsError):  # another attempt took it just now
                self._bucket.put(_fence_key(following), b"", only_if_new=True)
                chosen = following
        if fence is not None and self.highest_fence() <= fence:
            self._bucket.put(_fence_key(fence), b"")
        highest = self.highest_fence()
        if highest > chosen:
            raise StaleFenceError(f"fence {chosen} is older than {highest}, which has begun in {self}")
        with contextlib.suppress(OSError):  # the next attempt removes what cannot be removed now
            self._forget_below(chosen)
        return chosen

    def write_skipped(self, fence: int, content: bytes) -> None:
        self._bucket.put(f"{skipped_ranges.NAME}/{fence:020d}", content)

    def read_skipped(self, fence: int) -> bytes | None:
        listed = [each.key for each in self._bucket.listed(f"{skipped_ranges.NAME}/")]
        found = [key for key in listed if (match := _SKIPPED.fullmatch(key)) is not None and int(match[1]) <= fence]
        if not found:
            return None
        size = self._bucket.size(max(found))
        if size > skipped_ranges.MOST_BYTES:
            raise OSError(errno.EFBIG, f"it holds {size} bytes, more than {skipped_ranges.MOST_BYTES}", max(found))
        return b"".join(self._bucket.read(max(found), size))

    def highest_fence(self) -> int:
        return max(self._fences(), default=0)

    def _fences(self) -> list[int]:
        found = (_FENCE.fullmatch(listed.key) for listed in self._bucket.listed(f"{FENCE}/"))
        return [int(match[1]) for match in found if match is not None]

    def _forget_below(self, fence: int) -> None:
        """Remove the half-written generations of earlier attempts and their fences: they may commit nothing
        any more.
        """
        half = [Generation(step, older) for step, older in self.half_written() if older < fence]
        for generation in half:
            self.abandon(generation)
        for key, upload_id in self._bucket.unfinished_uploads("step-"):
            found = _KEY.fullmatch(key)
            begun = None if found is None else Generation.named(found[1])
            if begun is not None and begun.fence < fence:
                self._bucket.abort_upload(key, upload_id)
        self._bucket.delete([_fence_key(older) for older in self._fences() if older < fence])

    def list_generations(self) -> list[Generation]:
        named = {generation for generation, names in self._found().items() if MANIFEST in names}
        return sorted(named, reverse=True)

    def half_written(self) -> list[tuple[int, int]]:
        half = [generation for generation, names in self._found().items() if MANIFEST not in names]
        return [(generation.step, generation.fence) for generation in sorted(half, reverse=True)]

    def _found(self) -> dict[Generation, dict[str, float]]:
        """Return each generation's objects: name → time of the write."""
        found: dict[Generation, dict[str, float]] = {}
        for listed in self._bucket.listed("step-"):
            match = _KEY.fullmatch(listed.key)
            generation = None if match is None else Generation.named(match[1])
            if match is not None and generation is not None and generation.name == match[1]:
                found.setdefault(generation, {})[match[2]] = listed.written_unix_s
        return found

    def prepare(self, generation: Generation) -> None:
        if self._is_committed(generation):
            raise FileExistsError(errno.EEXIST, "exists already", f"{self}/{generation.name}")

    def abandon(self, generation: Generation) -> None:
        """Remove a generation unless it has, or may have, a manifest: one that was put without an answer may have
        arrived.
        """
        with contextlib.suppress(OSError):
            if not self._is_committed(generation):
                self._delete(generation)

    def write_part(self, generation: Generation, rank: int, dump: Callable[[HashingFile], None]) -> FileRecord:
        name = manifest.file_name(rank)
        upload = Upload(self._bucket, f"{generation.name}/{name}")
        file = HashingFile(upload)
        try:
            dump(file)
            upload.finish()
        except BaseException:
            upload.abort()
            raise
        return FileRecord(name, rank, file.size, file.sha256)

    def commit(self, about: Manifest) -> str:
        generation = Generation(about.step, about.fence)
        self._require_fence(about.fence)
        sizes = self._sizes(generation)
        for file in about.files:
            if sizes.get(file.name) is None:
                raise FileNotFoundError(errno.ENOENT, f"{file.name} is not there", f"{self}/{generation.name}")
            if sizes[file.name] != file.size:
                raise OSError(errno.EIO, f"{file.name} has another size than was written", f"{self}/{generation.name}")
        content = manifest.dump(about)
        self._put_manifest(generation, content)
        try:
            self._require_fence(about.fence)
        except StaleFenceError:  # it began between the check and the manifest: as if the check had seen it
            self._bucket.delete([f"{generation.name}/{MANIFEST}"])
            raise
        return hashlib.sha256(content).hexdigest()

    def _sizes(self, generation: Generation) -> dict[str, int]:
        """Return the sizes of all objects there, by name: one request, however many ranks there are."""
        below = f"{generation.name}/"
        return {listed.key.removeprefix(below): listed.size for listed in self._bucket.listed(below)}

    def _require_fence(self, fence: int) -> None:
        highest = self.highest_fence()
        if highest > fence:
            raise StaleFenceError(f"fence {highest} has begun, {fence} may commit nothing any more")

    def _put_manifest(self, generation: Generation, content: bytes) -> None:
        """Put the manifest. If an answer was lost, the repeated request finds the name taken, by ourselves."""
        key = f"{generation.name}/{MANIFEST}"
        try:
            self._bucket.put(key, content, only_if_new=True)
        except FileExistsError:
            if self._bucket.get(key) != content:
                raise

    def _is_committed(self, generation: Generation) -> bool:
        try:
            self._bucket.size(f"{generation.name}/{MANIFEST}")
        except FileNotFoundError:
            return False
        return True

    def read_manifest(self, generation: Generation) -> Manifest:
        key = f"{generation.name}/{MANIFEST}"
        with _reading(MANIFEST):
            size = self._bucket.size(key)
            if size > MOST_MANIFEST_BYTES:
                raise UnusableError(f"{MANIFEST} holds {size} bytes, more than {MOST_MANIFEST_BYTES}")
            content = b"".join(self._bucket.read(key, size))
        return generations.require_about(manifest.parse(content), generation)

    def measured(self, generation: Generation) -> Manifest:
        about = self.read_manifest(generation)
        sizes = self._sizes(generation)
        for file in about.files:
            size = sizes.get(file.name)
            if size is None:
                raise UnusableError(f"{file.name} cannot be read: there is no such object", is_missing=True)
            generations.compare(file, size, file.sha256)
        return about

    def verify(self, generation: Generation, pace: Pacing | None = None) -> Manifest:
        about = self.read_manifest(generation)
        for file in about.files:
            size, digest = 0, hashlib.sha256()
            with _reading(file.name):
                for piece in self._pieces(generation, file):
                    size += len(piece)
                    digest.update(piece)
                    if pace is not None:
                        pace(len(piece))
            generations.compare(file, size, digest.hexdigest())
        return about

    def verified_part(self, about: Manifest, file: FileRecord) -> bytes:
        with _reading(file.name):
            content = b"".join(self._pieces(Generation(about.step, about.fence), file))
        generations.compare(file, len(content), hashlib.sha256(content).hexdigest())
        return content

    def _pieces(self, generation: Generation, file: FileRecord) -> Iterator[bytes]:
        """Yield a file in pieces. Raises UnusableError if it has another size than was saved, before a byte is read."""
        key = f"{generation.name}/{file.name}"
        size = self._bucket.size(key)
        generations.require_size(file, size)
        return self._bucket.read(key, size)

    def mark_good(self, generation: Generation) -> None:
        self._bucket.put(f"{generation.name}/{GOOD}", b"")

    def good_ones(self) -> frozenset[str]:
        return self._marked_ones(GOOD)

    def pin(self, generation: Generation, mark: str) -> None:
        self._bucket.put(f"{generation.name}/{mark}", b"")

    def unpin(self, generation: Generation, mark: str) -> None:
        self._bucket.delete([f"{generation.name}/{mark}"])

    def pinned_ones(self, mark: str) -> frozenset[str]:
        return self._marked_ones(mark)

    def _marked_ones(self, mark: str) -> frozenset[str]:
        return frozenset(
            generation.name for generation, names in self._found().items() if {MANIFEST, mark} <= names.keys()
        )

    def mark_read(self, generation: Generation) -> None:
        self._bucket.put(f"{generation.name}/{READ}", b"")

    def read_ones(self) -> dict[str, float]:
        return {
            generation.name: names[READ]
            for generation, names in self._found().items()
            if {MANIFEST, READ} <= names.keys()
        }

    def aged_ones(self, verified: Iterable[Generation], hold_s: float, now_unix_s: float) -> frozenset[str]:
        found = self._found()
        written = {generation: found.get(generation, {}).get(MANIFEST, now_unix_s) for generation in verified}
        return frozenset(generation.name for generation, at in written.items() if at + hold_s <= now_unix_s)

    def remove(self, gone: Iterable[Generation]) -> None:
        for generation in gone:
            self._bucket.delete([f"{generation.name}/{MANIFEST}"])
            self._delete(generation)

    def _delete(self, generation: Generation) -> None:
        self._bucket.delete([listed.key for listed in self._bucket.listed(f"{generation.name}/")])


def _fence_key(fence: int) -> str:
    return f"{FENCE}/{fence:020}"


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Raise UnusableError for a missing object. Any other error is the store's, and stays an OSError."""
    try:
        yield
    except FileNotFoundError as fault:
        raise UnusableError(f"{name} cannot be read: {fault.strerror}", is_missing=True) from fault
