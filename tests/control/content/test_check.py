"""The store compared with the database: each may be older than the other, or empty."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

import pytest
from sqlalchemy import func, select, text

from control.content.check import MARK, Compared, adopt, compare, mark_missing
from control.content.collection import SETTLED_S
from control.content.types import ObjectName, Upload
from muster.content.manifest import digest_of
from muster.db.models import StoredObject as Stored
from muster.db.sessions import note_change
from muster.domain.errors import ValidationFailedError
from muster.domain.stored_content import FolderState, ObjectKind, ObjectState
from muster.store.keys import object_key
from muster.store.objects import ObjectStore, StoredObject
from tests.control.content.conftest import PlayedStore, Tenant, manifest
from tests.control.content.test_collection import keep
from tests.control.reclaim.stage import Stage
from tests.fleet_factory import OPERATOR

CODE = manifest(train=b"print('hello')", model=b"import torch")
DAY_S = 86_400.0
LOST = text("""
    WITH lost AS (
        INSERT INTO stored_objects (tenant_id, kind, digest, num_bytes, state)
        SELECT :tenant_id, 'chunk', sha256(CAST(CAST(n AS text) AS bytea)), 5, 'present'
        FROM generate_series(0, :most - 1) AS n RETURNING id
    )
    INSERT INTO folder_objects (folder_id, object_id)
    SELECT folder.id, lost.id FROM lost, stored_folders AS folder WHERE folder.digest = :digest
""")


@dataclass
class Objects:
    """``on_listed``: runs between a listing and what follows it."""

    sizes: dict[str, int] = field(default_factory=dict)
    on_listed: Callable[[], None] = lambda: None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for key, num_bytes in sorted(self.sizes.items()):
            if key.startswith(prefix):
                yield StoredObject(key, num_bytes, datetime.now(UTC))
        self.on_listed()


def uploaded(tenant: Tenant, objects: Objects) -> Upload:
    owner = tenant.principal.tenant_id
    assert owner is not None
    wanted = tenant.begin(CODE).wanted
    objects.sizes.update((object_key(owner, each.kind, each.digest), each.num_bytes) for each in wanted)
    return tenant.confirm(CODE.digest, *(each.digest for each in wanted))


def compared(stage: Stage, objects: Objects) -> Compared:
    return compare(stage.units, cast("ObjectStore", objects))


def test_a_store_that_has_all_is_whole(stage: Stage, tenant: Tenant) -> None:
    objects = Objects()
    uploaded(tenant, objects)
    found = compared(stage, objects)
    assert (found.num_objects, found.missing, found.surplus, found.unknown) == (3, {}, [], [])


def test_what_an_older_store_lacks_is_named_and_uploaded_again(stage: Stage, tenant: Tenant) -> None:
    objects = Objects()
    uploaded(tenant, objects)
    gone, damaged, _ = sorted(objects.sizes)
    del objects.sizes[gone]
    objects.sizes[damaged] -= 1
    found = compared(stage, objects)
    assert {object_key(name.tenant_id, name.kind, name.digest) for name in found.missing} == {gone, damaged}
    assert set(found.missing.values()) == {(CODE.digest,)}
    assert mark_missing(stage.units, OPERATOR, list(found.missing)) == 1
    with pytest.raises(ValidationFailedError, match="is not complete"):
        stage.submit("on_demand", program={"script": "train", "bundle": CODE.digest})
    assert tenant.begin(CODE).num_missing == 2
    assert uploaded(tenant, objects).folder.state is FolderState.COMPLETE
    assert compared(stage, objects).missing == {}


NUM_LOST = 66_000
"""More than the parameters that a statement may have."""


def test_a_store_that_lost_very_many_objects_is_marked_too(stage: Stage, tenant: Tenant) -> None:
    owner = stage.fleet.tenant_id
    tenant.upload(CODE)
    with stage.units.begin(OPERATOR, MARK, quiet=True) as unit:
        note_change(unit.session)
        unit.session.execute(LOST, {"tenant_id": owner, "most": NUM_LOST, "digest": CODE.digest})
    lost = [ObjectName(owner, ObjectKind.CHUNK, digest_of(b"%d" % n), 5) for n in range(NUM_LOST)]
    assert mark_missing(stage.units, OPERATOR, lost) == 1
    with stage.units.read() as session:
        counted = select(func.count()).select_from(Stored).where(Stored.state == ObjectState.WANTED)
        assert session.scalar(counted) == NUM_LOST
    assert tenant.begin(CODE).num_missing == NUM_LOST


def test_what_an_older_database_does_not_know_is_named_and_deleted_a_day_later(
    stage: Stage, tenant: Tenant, store: PlayedStore
) -> None:
    owner = stage.fleet.tenant_id
    objects = Objects()
    uploaded(tenant, objects)
    keys = [f"tenants/{owner}/chunks/00/{'0' * 64}", f"tenants/{owner}/manifests/{'1' * 64}"]
    strange = ["tenants/ten_00000000000000000000000000/chunks/00/" + "0" * 64, f"tenants/{owner}/notes", "tenants/x"]
    objects.sizes.update(dict.fromkeys([*keys, *strange], 5))
    found = compared(stage, objects)
    assert [object_key(name.tenant_id, name.kind, name.digest) for name in found.surplus] == keys
    assert sorted(found.unknown) == sorted(strange)
    adopt(stage.units, OPERATOR, found.surplus)
    assert compared(stage, objects).surplus == []
    tenant.used_bytes()
    store.keys = set(objects.sizes)
    stage.clock.advance(DAY_S + 60)
    keep(stage.units, store)
    assert set(objects.sizes) - store.keys == set(keys)


def test_what_is_deleted_and_forgotten_after_it_was_listed_is_no_surplus(
    stage: Stage, tenant: Tenant, store: PlayedStore
) -> None:
    def collect() -> None:
        keep(stage.units, store)
        stage.clock.advance(SETTLED_S + 1)
        keep(stage.units, store)

    objects = Objects(on_listed=collect)
    uploaded(tenant, objects)
    tenant.delete(CODE.digest)
    store.keys = set(objects.sizes)
    stage.clock.advance(DAY_S + 60)
    found = compared(stage, objects)
    assert store.keys == set()
    assert (found.num_objects, found.missing, found.surplus, found.unknown) == (0, {}, [], [])
