"""The copy of one folder on this host: whole already, or made so from what is here and from the content store."""

import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from muster.content.faults import ManifestError
from muster.content.manifest import Manifest, decode
from muster.durable import write_durably
from workers.host.content import copies
from workers.host.content.chunks import Save
from workers.host.content.drafts import Draft, known_chunks, whole_files
from workers.host.content.failpoints import AFTER_MANIFEST, failpoint
from workers.host.content.faults import BrokenBundleError, NoRoomError
from workers.host.content.places import Place

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_MOST_OTHERS: Final = 4
"""Other copies that are searched for the same chunks: a tenant's folders change little from one job to the next."""


class Source(Protocol):
    """Where content comes from."""

    def manifest(self) -> bytes: ...

    def chunks(self, lacking: Mapping[str, int], save: Save) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """``cache_bytes``: of all copies on the host. ``free_bytes``: of the disk must stay free."""

    cache_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class WholeCopy:
    """``used``: places of attempts on this host. ``is_checked_in_use``: its user reads every byte, so that this need
    not. ``near``: a folder outside of all copies that has the same chunks. ``may_link``: nothing but the copy will
    have its files.
    """

    place: Place
    source: Source
    limits: Limits
    used: Collection[Place] = ()
    is_checked_in_use: bool = False
    near: tuple[Path, Manifest] | None = None
    may_link: bool = False

    def made(self) -> Manifest:
        """Return the manifest of the copy, which is whole now.

        Others that want the same folder wait meanwhile: it is fetched once.

        Raises:
            FetchError: the folder is not available, or has no room here.
            OSError: this host's disk fails.
        """
        place = self.place
        with place.locked(alone=True):
            place.note_use()
            manifest, record = copies.manifest_of(place), copies.record_of(place)
            is_here = record is not None and record.is_whole and place.copy.is_dir()
            # Where files are copied, each byte is checked on the way.
            if manifest is not None and is_here and (self.is_checked_in_use or copies.is_as_read(place, manifest)):
                return manifest
            if manifest is None:
                manifest = self._fetch_manifest()
            try:
                self._complete(manifest)
            except (OSError, NoRoomError) as fault:
                if isinstance(fault, NoRoomError) or fault.errno in FULL:
                    copies.remove(place)
                raise
            return manifest

    def _fetch_manifest(self) -> Manifest:
        content = self.source.manifest()
        try:
            manifest = decode(content)
        except ManifestError as fault:
            raise BrokenBundleError(f"the {self.place.kind} cannot be used: {fault}") from fault
        write_durably(self.place.file("manifest"), content)
        failpoint(AFTER_MANIFEST)
        return manifest

    def _complete(self, manifest: Manifest) -> None:
        """Make the copy whole: from what is here of it, from other copies, and for the rest from the store."""
        place = self.place
        copies.sweep(place.copy.parent)
        if place.copy.is_dir():
            copies.reopen(place, manifest)
        others = list(copies.whole_copies(place, _MOST_OTHERS))
        self._make_room(manifest, 0)
        draft = Draft(place.draft, manifest)
        near = () if self.near is None else (self.near,)
        draft.open(whole_files([*others, *near] if self.may_link else others))
        self._make_room(manifest, draft.num_bytes_lacking())
        draft.take_from(known_chunks([*near, *others, (place.draft, manifest)]))
        sizes = dict(manifest.chunks())
        self.source.chunks({digest: sizes[digest] for digest in draft.lacking}, draft)
        draft.close()
        copies.publish(place, manifest)

    def _make_room(self, manifest: Manifest, num_new: int) -> None:
        limits = self.limits
        copies.make_room(
            self.place,
            self.place.bytes_of(manifest),
            num_new,
            most=limits.cache_bytes,
            least_free=limits.free_bytes,
            used=self.used,
        )
