"""A tenant with folders to store, and a store that a test plays."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select

from control.content import bundles
from control.content.manifests import Reading, reading_of
from control.content.types import FolderFound, Upload
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWorkFactory
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import ContentUse, FolderObject, StoredObject
from muster.domain.principals import Principal
from muster.store.faults import StoreSlowError
from muster.store.objects import OWN_S
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.filled_once import filled_world


@dataclass
class PlayedStore:
    """A bucket that refuses what has expired. ``is_slow``: it does not answer deletions.

    ``each_s``: duration of each deletion. ``fails_at``: it does not answer for these keys.
    """

    clock: SetClock
    keys: set[str] = field(default_factory=set)
    is_slow: bool = False
    each_s: float = 0.0
    fails_at: frozenset[str] = frozenset()

    def delete(self, keys: Iterable[str], *, decided_at: datetime | None = None) -> None:
        assert decided_at is not None
        for key in keys:
            self.clock.advance(self.each_s)
            is_late = self.clock.now >= decided_at + timedelta(seconds=OWN_S)
            if self.is_slow or is_late or key in self.fails_at:
                raise StoreSlowError("the content store does not answer")
            self.keys.discard(key)


@dataclass
class Tenant:
    """What one tenant does with its bundles."""

    units: UnitOfWorkFactory
    principal: Principal

    def begin(self, manifest: Reading) -> Upload:
        with self.units.begin(self.principal, bundles.BEGIN) as unit:
            return bundles.begin(unit, manifest)

    def confirm(self, digest: str, *uploaded: str) -> Upload:
        with self.units.begin(self.principal, bundles.CONFIRM, quiet=True) as unit:
            return bundles.confirm(unit, digest, uploaded)

    def upload(self, manifest: Reading) -> Upload:
        """Begun, and all of it uploaded and confirmed."""
        return self.confirm(manifest.digest, *(each.digest for each in self.begin(manifest).wanted))

    def delete(self, digest: str) -> None:
        with self.units.begin(self.principal, bundles.DELETE) as unit:
            bundles.delete(unit, digest)

    def bundles(self) -> list[FolderFound]:
        with self.units.begin(self.principal, bundles.READ, quiet=True) as unit:
            return bundles.list_bundles(unit, bundles.BundleFilter(), Part(100))

    def used_bytes(self) -> int:
        """As counted, which is what its rows say."""
        owner = self.principal.tenant_id
        named = select(FolderObject.object_id)
        counted = select(ContentUse.num_bytes).where(ContentUse.tenant_id == owner)
        summed = select(func.coalesce(func.sum(StoredObject.num_bytes), 0))
        with self.units.read() as session:
            used = session.scalar(counted) or 0
            held = session.scalar(summed.where(StoredObject.tenant_id == owner, StoredObject.id.in_(named)))
        assert used == held
        return used


def manifest(**files: bytes) -> Reading:
    """The manifest of a folder with small files of these contents."""
    entries = [Entry(name, Kind.FILE, len(text), (digest_of(text),) if text else ()) for name, text in files.items()]
    return reading_of(encode(Manifest(VERSION, tuple(sorted(entries, key=lambda entry: entry.path)))))


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    return filled_world(units, clock, "a host of two GPUs", lambda: make_stage(units, clock, num_hosts=1))


@pytest.fixture
def tenant(stage: Stage) -> Tenant:
    return Tenant(stage.units, stage.fleet.tenant)


@pytest.fixture
def store(clock: SetClock) -> PlayedStore:
    return PlayedStore(clock)
