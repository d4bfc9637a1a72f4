"""``muster content check`` on a real database and our own store."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from control.content import bundles
from control.content.manifests import reading_of
from control.content.reading import Pace
from control.core.unit_of_work import UnitOfWorkFactory
from muster.cli.admin.content_bytes import read_bytes
from muster.cli.framework.exits import Exit
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.domain.stored_content import FolderState
from muster.store.keys import object_key
from muster.store.objects import ObjectStore
from tests.cli.command import Command
from tests.fleet_factory import Fleet, make_fleet
from tests.patient import patient_engine
from tests.store.stores import OurStore, ours

CONTENT = b"print('hello')"


MANIFEST = encode(Manifest(VERSION, (Entry("train.py", Kind.FILE, len(CONTENT), (digest_of(CONTENT),)),)))


@dataclass(frozen=True)
class Filled:
    """A store with one bundle. ``keys``: of its objects, by digest. ``variables``: the command's settings."""

    store: OurStore
    units: UnitOfWorkFactory
    fleet: Fleet
    keys: dict[str, str]
    variables: dict[str, str]

    def wanted(self) -> list[str]:
        with self.units.begin(self.fleet.tenant, bundles.BEGIN) as unit:
            return [each.digest for each in bundles.begin(unit, reading_of(MANIFEST)).wanted]

    def damage(self) -> Path:
        """Change a byte of the chunk where the store keeps it."""
        path = self.store.folder / "store" / "objects" / self.keys[digest_of(CONTENT)]
        path.chmod(0o600)
        path.write_bytes(CONTENT.upper())
        return path


@pytest.fixture
def filled(database_url: str, tmp_path: Path) -> Iterator[Filled]:
    with ours(tmp_path) as store, patient_engine(database_url) as engine:
        units = UnitOfWorkFactory(engine)
        fleet = make_fleet(units)
        with units.begin(fleet.tenant, bundles.BEGIN) as unit:
            wanted = bundles.begin(unit, reading_of(MANIFEST)).wanted
        keys = {each.digest: object_key(fleet.tenant_id, each.kind, each.digest) for each in wanted}
        for each in wanted:
            assert store.put(keys[each.digest], CONTENT if each.kind == "chunk" else MANIFEST).is_success
        with units.begin(fleet.tenant, bundles.CONFIRM, quiet=True) as unit:
            done = bundles.confirm(unit, digest_of(MANIFEST), [each.digest for each in wanted])
        assert done.folder.state is FolderState.COMPLETE
        variables = {
            "MUSTER_DATABASE_URL": database_url,
            "MUSTER_STORE_URL": store.url,
            "MUSTER_STORE_KEY_FILE": str(store.key_file),
        }
        yield Filled(store, units, fleet, keys, variables)


def test_what_the_store_lacks_is_named_and_marked(muster: Command, filled: Filled) -> None:
    variables = filled.variables
    whole = muster.run("content", "check", **variables)
    assert whole.returncode == Exit.OK, whole.stderr
    assert "2 objects are in the database: 0 of them are missing" in " ".join(whole.stdout.split())
    mistyped = muster.run("content", "check", "--tenant", "ten_none", **variables)
    assert mistyped.returncode == Exit.NOT_FOUND
    assert "there is no tenant ten_none" in mistyped.stderr
    filled.store.objects().delete([filled.keys[digest_of(CONTENT)]])
    named = muster.run("content", "check", "--json", **variables)
    assert named.returncode == Exit.FAILED
    (missing,) = json.loads(named.stdout)["missing"]
    assert (missing["digest"], missing["bundles"]) == (digest_of(CONTENT), [digest_of(MANIFEST)])
    marked = muster.run("content", "check", "--mark-missing", **variables)
    assert marked.returncode == Exit.OK, marked.stderr
    assert "1 bundles are incomplete now" in " ".join(marked.stdout.split())
    assert filled.wanted() == [digest_of(CONTENT)]


def test_a_chunk_with_other_bytes_is_found_by_reading_marked_and_repaired(muster: Command, filled: Filled) -> None:
    path = filled.damage()
    by_size = muster.run("content", "check", **filled.variables)
    assert by_size.returncode == Exit.OK, "sizes alone do not show it"
    named = muster.run("content", "check", "--bytes", "--json", **filled.variables)
    assert named.returncode == Exit.FAILED
    document = json.loads(named.stdout)
    assert [(one["digest"], one["bundles"]) for one in document["corrupt"]] == [
        (digest_of(CONTENT), [digest_of(MANIFEST)])
    ]
    assert (document["read"]["num_objects"], document["read"]["is_complete"]) == (2, True)
    marked = muster.run("content", "check", "--bytes", "--mark-missing", **filled.variables)
    assert marked.returncode == Exit.OK, marked.stderr
    assert "1 of them have other bytes than their digest says" in " ".join(marked.stdout.split())
    assert filled.wanted() == [digest_of(CONTENT)]
    assert filled.store.put(filled.keys[digest_of(CONTENT)], CONTENT).is_success
    assert path.read_bytes() == CONTENT, "the upload replaces what was damaged"


def test_options_of_reading_are_refused_without_it(muster: Command, database_url: str) -> None:
    refused = muster.run("content", "check", "--sample", "5", MUSTER_DATABASE_URL=database_url)
    assert refused.returncode == Exit.USAGE
    assert "give --bytes too" in " ".join(refused.stderr.split())


@dataclass
class EndedStore:
    """A store whose reader is ended by Ctrl-C after so many reads."""

    store: ObjectStore
    num_left: int

    def read(self, key: str, most_bytes: int) -> bytes:
        if self.num_left == 0:
            raise KeyboardInterrupt
        self.num_left -= 1
        return self.store.read(key, most_bytes)


def test_a_reading_that_was_ended_continues_after_its_last_object(filled: Filled) -> None:
    pace = Pace(1e9)
    store = filled.store.objects()
    ended = cast("ObjectStore", EndedStore(store, 1))
    first = read_bytes(filled.units, ended, pace, tenant_id=None, after=0, share=1.0)
    assert (first.num_objects, first.document()["read"]["is_complete"]) == (1, False)
    assert f"--after {first.last} continues it" in " ".join(first.lines())
    rest = read_bytes(filled.units, store, pace, tenant_id=None, after=first.last, share=1.0)
    assert (rest.num_objects, rest.document()["read"]["is_complete"]) == (1, True)
    none = read_bytes(filled.units, store, pace, tenant_id=None, after=0, share=0.0)
    assert none.num_objects == 0


def test_without_a_store_the_command_names_the_settings(muster: Command, database_url: str) -> None:
    refused = muster.run("content", "check", MUSTER_DATABASE_URL=database_url)
    assert refused.returncode == Exit.USAGE
    assert "no content store is configured" in " ".join(refused.stderr.split())
