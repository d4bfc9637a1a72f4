"""What is deleted from the store, and when: never what a complete bundle has, whatever happens at the same time."""

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import cast

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from control.content import collection
from control.content.bundles import READ
from control.content.collection import Doomed, doom_once, keep_once, note_gone, settle_once
from control.content.manifests import Reading
from control.content.types import Upload
from control.core.unit_of_work import UnitOfWorkFactory
from muster.db.models import Checkpoint, FolderObject, StoredFolder, StoredObject
from muster.domain.errors import NotFoundError
from muster.domain.principals import system_principal
from muster.domain.states import CheckpointStatus, JobState
from muster.domain.stored_content import FolderState, ObjectState
from muster.failpoints import FailpointError, arming
from muster.store.faults import StoreSlowError
from muster.store.keys import chunk_key, object_key
from muster.store.objects import OWN_S, UPLOAD_S, ObjectStore
from tests.control.conftest import SetClock
from tests.control.content.conftest import PlayedStore, Tenant, manifest
from tests.control.reclaim.stage import DONE, Stage
from tests.scaled import examples

DAY_S = 86_400.0
FOLDERS = (manifest(a=b"one", b=b"two"), manifest(a=b"two", b=b"three"))


@dataclass
class Client:
    """Uploads one folder by addresses that it got, which expire, and confirms what the store took of it."""

    tenant: Tenant
    store: PlayedStore
    folder: Reading
    given_at: datetime | None = None
    keys: dict[str, str] = field(default_factory=dict)
    taken: list[str] = field(default_factory=list)

    def begin(self) -> None:
        self.taken = []
        self._note(self.tenant.begin(self.folder))

    def _note(self, upload: Upload) -> None:
        owner = self.tenant.principal.tenant_id
        assert owner is not None
        self.given_at = self.store.clock.now
        self.keys = {each.digest: object_key(owner, each.kind, each.digest) for each in upload.wanted}

    def put(self, most: int = 10) -> None:
        if self.given_at is None or self.store.clock.now >= self.given_at + timedelta(seconds=UPLOAD_S):
            return
        for digest, key in list(self.keys.items())[:most]:
            self.store.keys.add(key)
            self.taken.append(digest)

    def put_one(self) -> None:
        self.put(1)

    def finish(self) -> None:
        self.put()
        self.confirm()

    def delete(self) -> None:
        with suppress(NotFoundError):
            self.tenant.delete(self.folder.digest)

    def confirm(self) -> None:
        try:
            self._note(self.tenant.confirm(self.folder.digest, *self.taken))
        except NotFoundError:
            self.begin()
        self.taken = []


@dataclass
class Keeper:
    """One of several processes that collect, which may be stopped at each step and continue later."""

    units: UnitOfWorkFactory
    store: PlayedStore
    doomed: Doomed | None = None
    left: list[str] = field(default_factory=list)

    def doom(self) -> None:
        self.doomed = doom_once(self.units, batch=2)
        self.left = list(self.doomed.keys)

    def die(self) -> None:
        self.doomed = None

    def send(self) -> None:
        """One deletion, which the store refuses where it comes too late."""
        if self.doomed is None:
            return
        try:
            for key in self.left[:1]:
                self.store.delete([key], decided_at=self.doomed.decided_at)
            self.left = self.left[1:]
        except StoreSlowError:
            event("a deletion came too late")
            self.doomed = None
            return
        if not self.left:
            note_gone(self.units, self.doomed.ids)
            self.doomed = None


STEPS = st.one_of(
    st.tuples(st.sampled_from(["begin", "put_one", "finish", "finish", "delete"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["doom", "send", "send", "die"]), st.integers(0, 1)),
    st.tuples(st.just("settle"), st.just(0)),
    st.tuples(st.just("wait"), st.sampled_from([30, OWN_S - 1, collection.SETTLED_S + 1, 25 * 3600])),
)
IDLE = [("begin", 0), ("finish", 0), ("delete", 0), ("wait", 25 * 3600)]
"""What each play begins with: chunks that may be deleted from now on."""


@dataclass
class Play:
    clients: list[Client]
    keepers: list[Keeper]
    clock: SetClock

    def __call__(self, step: str, number: int) -> None:
        if step == "wait":
            self._wait(number)
        elif step == "settle":
            settle_once(self.keepers[0].units)
        elif step in {"doom", "send", "die"}:
            getattr(self.keepers[number], step)()
        else:
            getattr(self.clients[number], step)()

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for each in self.clients:
            # A client that was away for longer than its addresses are valid begins again.
            if seconds >= UPLOAD_S:
                each.taken = []


def keep(units: UnitOfWorkFactory, store: PlayedStore) -> None:
    keep_once(units, cast("ObjectStore", store))


def lacking(units: UnitOfWorkFactory, store: PlayedStore) -> list[str]:
    """The keys that complete folders have and the store does not."""
    query = (
        select(StoredObject)
        .join(FolderObject, FolderObject.object_id == StoredObject.id)
        .join(StoredFolder, StoredFolder.id == FolderObject.folder_id)
        .where(StoredFolder.state == FolderState.COMPLETE)
    )
    with units.read() as session:
        found = session.scalars(query).all()
        assert all(one.state is ObjectState.PRESENT and one.idle_at is None for one in found)
        keys = {object_key(one.tenant_id, one.kind, one.digest.hex()) for one in found}
    return sorted(keys - store.keys)


@example(steps=[("doom", 0), ("begin", 0), ("settle", 0), ("finish", 0), ("finish", 0), ("send", 0)])
@example(steps=[("doom", 0), ("begin", 1), ("finish", 1), ("send", 0), ("send", 0)])
@example(
    steps=[
        ("doom", 0),
        ("wait", 181),
        ("doom", 1),
        ("begin", 0),
        ("settle", 0),
        ("finish", 0),
        ("finish", 0),
        ("send", 0),
    ]
)
@settings(max_examples=examples(400, 20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEPS, min_size=10, max_size=30))
def test_in_whatever_order_uploads_and_deletions_meet_a_complete_bundle_is_whole(
    stage: Stage, clock: SetClock, steps: list[tuple[str, int]]
) -> None:
    store = PlayedStore(clock)
    clock.advance(1)
    tenant = Tenant(stage.units, stage.add_tenant(f"tenant at {clock.now}"))
    clients = [Client(tenant, store, folder) for folder in FOLDERS]
    keepers = [Keeper(stage.units, store) for _ in range(2)]
    play = Play(clients, keepers, clock)
    for step, number in [*IDLE, *steps]:
        play(step, number)
        assert lacking(stage.units, store) == [], (step, number)
        tenant.used_bytes()
    for client in clients:
        while tenant.begin(client.folder).folder.state is FolderState.UPLOADING:
            client.begin()
            client.put()
            client.confirm()
            clock.advance(collection.SETTLED_S + 1)
            settle_once(stage.units)
    assert lacking(stage.units, store) == []
    for client in clients:
        tenant.delete(client.folder.digest)
    for _ in range(4):
        clock.advance(25 * 3600)
        keep(stage.units, store)
    assert (store.keys, tenant.used_bytes()) == (set(), 0)


def test_a_chunk_that_another_bundle_has_stays(
    stage: Stage, tenant: Tenant, store: PlayedStore, clock: SetClock
) -> None:
    first, second = Client(tenant, store, FOLDERS[0]), Client(tenant, store, FOLDERS[1])
    for client in (first, second):
        client.begin()
        client.put()
        client.confirm()
    tenant.delete(FOLDERS[0].digest)
    keep(stage.units, store)
    assert len(store.keys) == 5, "nothing goes within the first day"
    clock.advance(DAY_S + 1)
    keep(stage.units, store)
    owner = stage.fleet.tenant_id
    gone = chunk_key(owner, first.folder.chunks[:32].hex())
    assert len(store.keys) == 3
    assert gone not in store.keys
    assert lacking(stage.units, store) == []


def test_an_upload_that_names_a_chunk_just_being_deleted_waits_for_it(
    stage: Stage, tenant: Tenant, store: PlayedStore, clock: SetClock
) -> None:
    tenant.upload(FOLDERS[0])
    tenant.delete(FOLDERS[0].digest)
    clock.advance(DAY_S + 1)
    doomed = doom_once(stage.units)
    assert len(doomed.keys) == 3
    found = tenant.begin(FOLDERS[0])
    assert (found.num_missing, found.num_waiting, list(found.wanted)) == (3, 3, [])
    assert tenant.confirm(FOLDERS[0].digest, FOLDERS[0].digest).num_missing == 3, "no upload of it can have begun"
    note_gone(stage.units, doomed.ids)
    assert settle_once(stage.units) == 0
    clock.advance(collection.SETTLED_S + 1)
    assert settle_once(stage.units) == 3
    found = tenant.begin(FOLDERS[0])
    assert (found.num_waiting, len(found.wanted)) == (0, 3)


def test_a_store_that_does_not_answer_is_called_again(
    stage: Stage, tenant: Tenant, store: PlayedStore, clock: SetClock
) -> None:
    client = Client(tenant, store, FOLDERS[0])
    client.begin()
    client.put()
    client.confirm()
    tenant.delete(FOLDERS[0].digest)
    clock.advance(DAY_S + 1)
    store.is_slow = True
    for _ in range(3):
        keep(stage.units, store)
        clock.advance(collection.SETTLED_S + 1)
    assert len(store.keys) == 3
    store.is_slow = False
    keep(stage.units, store)
    clock.advance(collection.SETTLED_S + 1)
    keep(stage.units, store)
    assert store.keys == set()
    with stage.units.read() as session:
        assert session.scalars(select(StoredObject)).all() == []


def _idle(tenant: Tenant, store: PlayedStore, clock: SetClock, *, num_chunks: int) -> None:
    client = Client(tenant, store, manifest(**{f"f{number}": b"%d" % number for number in range(num_chunks)}))
    client.begin()
    client.put(num_chunks + 1)
    client.confirm()
    tenant.delete(client.folder.digest)
    clock.advance(DAY_S + 1)


def test_what_a_slow_store_deletes_in_time_is_gone_and_the_rest_follows(
    stage: Stage, tenant: Tenant, store: PlayedStore, clock: SetClock
) -> None:
    _idle(tenant, store, clock, num_chunks=19)
    store.each_s = 9.0
    for num_left in (8, 0):
        keep(stage.units, store)
        assert len(store.keys) == num_left
        with stage.units.read() as session:
            rest = session.scalars(select(StoredObject).where(StoredObject.gone_at.is_(None))).all()
        assert len(rest) == num_left, "what was deleted is not asked for again"
        clock.advance(collection.SETTLED_S + 1)
    keep(stage.units, store)
    with stage.units.read() as session:
        assert session.scalars(select(StoredObject)).all() == []


def test_what_was_deleted_before_a_store_stopped_answering_is_gone(
    stage: Stage, tenant: Tenant, store: PlayedStore, clock: SetClock
) -> None:
    _idle(tenant, store, clock, num_chunks=5)
    store.fails_at = frozenset([max(store.keys)])
    keep(stage.units, store)
    left = len(store.keys)
    with stage.units.read() as session:
        assert len(session.scalars(select(StoredObject).where(StoredObject.gone_at.is_(None))).all()) == left
    assert left >= 1
    store.fails_at = frozenset()
    clock.advance(collection.SETTLED_S + 1)
    keep(stage.units, store)
    assert store.keys == set()


def test_a_bundle_stays_while_a_job_uses_it_or_a_kept_checkpoint_is_of_one(stage: Stage, tenant: Tenant) -> None:
    tenant.upload(FOLDERS[0])
    tenant.upload(FOLDERS[1])
    saved = stage.run("on_demand", program={"script": "a", "bundle": FOLDERS[0].digest})
    stage.clock.advance(60)
    stage.saves(saved, 10)
    stage.leave(saved, DONE)
    assert stage.job(saved).state is JobState.SUCCEEDED
    waiting = stage.submit("on_demand", program={"script": "a", "bundle": FOLDERS[1].digest}, shape={"gpus": 2})
    stage.clock.advance(31 * DAY_S)
    assert collection.expire_once(stage.units) == 0
    stage.cancel(waiting)
    assert collection.expire_once(stage.units) == 0, "a job has just ended that used it"
    stage.clock.advance(31 * DAY_S)
    assert collection.expire_once(stage.units) == 1
    assert [found.folder.digest for found in tenant.bundles()] == [FOLDERS[0].digest]
    _expire_checkpoints(stage.units)
    assert collection.expire_once(stage.units) == 1
    assert tenant.bundles() == []


def _expire_checkpoints(units: UnitOfWorkFactory) -> None:
    with units.begin(system_principal("test"), READ, quiet=True) as unit:
        for row in unit.session.scalars(select(Checkpoint)):
            row.status = CheckpointStatus.EXPIRED


def test_an_upload_that_was_given_up_is_forgotten(stage: Stage, tenant: Tenant, clock: SetClock) -> None:
    tenant.begin(FOLDERS[0])
    clock.advance(23 * 3600)
    tenant.confirm(FOLDERS[0].digest, tenant.begin(FOLDERS[0]).wanted[0].digest)
    clock.advance(23 * 3600)
    assert collection.expire_once(stage.units) == 0
    clock.advance(2 * 3600)
    assert collection.expire_once(stage.units) == 1
    assert (tenant.bundles(), tenant.used_bytes()) == ([], 0)


@pytest.mark.parametrize("action", [collection.EXPIRE, collection.DOOM, collection.SETTLE])
@pytest.mark.parametrize("step", ["before_commit", "after_commit"])
def test_a_collection_that_dies_is_repeated(
    stage: Stage, tenant: Tenant, store: PlayedStore, clock: SetClock, action: str, step: str
) -> None:
    client = Client(tenant, store, FOLDERS[0])
    client.begin()
    client.put()
    client.confirm()
    clock.advance(31 * DAY_S)
    num_deaths = 0
    for _ in range(3):
        with arming(f"{action}.{step}=raise"):
            try:
                keep(stage.units, store)
            except FailpointError:
                num_deaths += 1
        clock.advance(DAY_S + 1)
    assert num_deaths > 0
    for _ in range(4):
        keep(stage.units, store)
        clock.advance(DAY_S + 1)
    assert (store.keys, tenant.bundles()) == (set(), [])
