"""One bundle for one attempt: the host's copy is whole, or is made so, and the attempt gets its folder."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.content.faults import DamagedError
from muster.content.manifest import Manifest
from workers.host.content import copies
from workers.host.content.faults import NoRoomError
from workers.host.content.places import Place
from workers.host.content.removal import remove_work_folder
from workers.host.content.whole_copy import FULL, Limits, Source, WholeCopy
from workers.host.content.work_folder import make_work_folder

_NUM_TRIES: Final = 3


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
        copy = WholeCopy(self.place, self.source, self.limits, self.used, is_checked_in_use=not self.are_linked)
        try:
            for _ in range(_NUM_TRIES):
                if self._has_run(copy.made()):
                    return
        except OSError as fault:
            if fault.errno not in FULL:
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


def used_places(root: Path, orders: Collection[dict[str, object]]) -> frozenset[Place]:
    """Return the bundles that these orders name."""
    bundles = (order.get("bundle") for order in orders)
    return frozenset(
        Place(root, str(bundle.get("tenant_id")), str(bundle.get("digest")))
        for bundle in bundles
        if isinstance(bundle, dict)
    )
