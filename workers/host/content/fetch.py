"""One bundle for one attempt: the host's copy is whole, or is made so, and the attempt gets its folder."""

import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from muster.content.faults import DamagedError, ManifestError
from muster.content.manifest import Manifest, decode
from muster.durable import write_durably
from workers.host.content import copies
from workers.host.content.drafts import Draft, known_chunks, whole_files
from workers.host.content.faults import BrokenBundleError, NoRoomError
from workers.host.content.places import Place
from workers.host.content.removal import remove_work_folder
from workers.host.content.work_folder import make_work_folder

_MOST_OTHERS: Final = 4
"""Other copies that are searched for the same chunks: a tenant's folders change little from one job to the next."""
_NUM_TRIES: Final = 3
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Source(Protocol):
    """Where content comes from."""

    def manifest(self) -> bytes: ...

    def chunks(self, lacking: Mapping[str, int], save: Callable[[str, bytes], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """``cache_bytes``: of all copies on the host. ``free_bytes``: of the disk must stay free."""

    cache_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """``target``: the attempt's folder, which is made again. ``used``: bundles of attempts on this host.

    ``are_linked``: its files are hard links to the copy's. ``owner``: user and group of its folders; None: our own.
    """

    place: Place
    source: Source
    target: Path
    limits: Limits
    used: Collection[Place] = ()
    are_linked: bool = False
    owner: tuple[int, int] | None = None

    def run(self) -> None:
        """Make the folder of the bundle.

        Raises:
            FetchError: the bundle is not available, or has no room here.
            DamagedError: this host's disk changes what it holds.
            OSError: this host's disk fails.
        """
        self.place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            for _ in range(_NUM_TRIES):
                if self._has_run(self._whole_copy()):
                    return
        except OSError as fault:
            if fault.errno not in _FULL:
                raise
            remove_work_folder(self.target)
            raise NoRoomError(f"the disk of {self.place.root.parent} is full") from fault
        raise DamagedError(f"the copy of the bundle {self.place.digest[:12]} on this host changes while it is read")

    def _has_run(self, manifest: Manifest) -> bool:
        """Return whether the folder was made; False: the copy was removed meanwhile, or is damaged."""
        place = self.place
        with place.locked(alone=False):
            if not place.copy.is_dir():
                return False
            remove_work_folder(self.target)
            if not self.are_linked:
                copies.make_free(place, manifest.num_bytes, least_free=self.limits.free_bytes, used=self.used)
            try:
                make_work_folder(manifest, place.copy, self.target, are_linked=self.are_linked, owner=self.owner)
            except (DamagedError, FileNotFoundError):
                pass
            else:
                return True
        with place.locked(alone=True):
            copies.note(place, copies.CopyRecord(num_bytes=manifest.num_bytes))
        return False

    def _whole_copy(self) -> Manifest:
        """Return the manifest of the copy, which is whole now.

        Others that want the same bundle wait meanwhile: it is fetched once.
        """
        place = self.place
        with place.locked(alone=True):
            place.note_use()
            manifest, record = copies.manifest_of(place), copies.record_of(place)
            is_here = record is not None and record.is_whole and place.copy.is_dir()
            # Where files are copied, each byte is checked on the way.
            if manifest is not None and is_here and (not self.are_linked or copies.is_as_read(place, manifest)):
                return manifest
            if manifest is None:
                manifest = self._fetch_manifest()
            try:
                self._complete(manifest)
            except (OSError, NoRoomError) as fault:
                if isinstance(fault, NoRoomError) or fault.errno in _FULL:
                    copies.remove(place)
                raise
            return manifest

    def _fetch_manifest(self) -> Manifest:
        content = self.source.manifest()
        try:
            manifest = decode(content)
        except ManifestError as fault:
            raise BrokenBundleError(f"the bundle cannot be used: {fault}") from fault
        write_durably(self.place.file("manifest"), content)
        return manifest

    def _complete(self, manifest: Manifest) -> None:
        """Make the copy whole: from what is here of it, from other copies, and for the rest from the store."""
        place = self.place
        copies.sweep(place.copy.parent)
        if place.copy.is_dir():
            copies.reopen(place, manifest)
        others = list(copies.whole_copies(place.root, place.tenant_id, _MOST_OTHERS))
        self._make_room(manifest, 0)
        draft = Draft(place.draft, manifest)
        draft.open(whole_files(others))
        self._make_room(manifest, draft.num_bytes_lacking())
        draft.take_from(known_chunks([*others, (place.draft, manifest)]))
        sizes = dict(manifest.chunks())
        self.source.chunks({digest: sizes[digest] for digest in draft.lacking}, draft.write)
        draft.close()
        copies.publish(place, manifest)

    def _make_room(self, manifest: Manifest, num_new: int) -> None:
        limits = self.limits
        copies.make_room(
            self.place,
            manifest.num_bytes,
            num_new,
            most=limits.cache_bytes,
            least_free=limits.free_bytes,
            used=self.used,
        )


def used_places(root: Path, orders: Collection[dict[str, object]]) -> frozenset[Place]:
    """Return the bundles that these orders name."""
    bundles = (order.get("bundle") for order in orders)
    return frozenset(
        Place(root, str(bundle.get("tenant_id")), str(bundle.get("digest")))
        for bundle in bundles
        if isinstance(bundle, dict)
    )
