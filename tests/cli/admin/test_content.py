"""``muster content check`` on a real database and our own store."""

import json
from pathlib import Path

from control.content import bundles
from control.content.manifests import reading_of
from control.core.unit_of_work import UnitOfWorkFactory
from muster.cli.framework.exits import Exit
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.domain.stored_content import FolderState
from muster.store.keys import object_key
from tests.cli.command import Command
from tests.fleet_factory import make_fleet
from tests.patient import patient_engine
from tests.store.stores import ours

CONTENT = b"print('hello')"


def test_what_the_store_lacks_is_named_and_marked(muster: Command, database_url: str, tmp_path: Path) -> None:
    manifest = encode(Manifest(VERSION, (Entry("train.py", Kind.FILE, len(CONTENT), (digest_of(CONTENT),)),)))
    with ours(tmp_path) as store, patient_engine(database_url) as engine:
        units = UnitOfWorkFactory(engine)
        fleet = make_fleet(units)
        with units.begin(fleet.tenant, bundles.BEGIN) as unit:
            wanted = bundles.begin(unit, reading_of(manifest)).wanted
        keys = {each.digest: object_key(fleet.tenant_id, each.kind, each.digest) for each in wanted}
        for each in wanted:
            assert store.put(keys[each.digest], CONTENT if each.kind == "chunk" else manifest).is_success
        with units.begin(fleet.tenant, bundles.CONFIRM, quiet=True) as unit:
            done = bundles.confirm(unit, digest_of(manifest), [each.digest for each in wanted])
        assert done.folder.state is FolderState.COMPLETE
        variables = {
            "MUSTER_DATABASE_URL": database_url,
            "MUSTER_STORE_URL": store.url,
            "MUSTER_STORE_KEY_FILE": str(store.key_file),
        }
        whole = muster.run("content", "check", **variables)
        assert whole.returncode == Exit.OK, whole.stderr
        assert "2 objects are in the database: 0 of them are missing" in " ".join(whole.stdout.split())
        mistyped = muster.run("content", "check", "--tenant", "ten_none", **variables)
        assert mistyped.returncode == Exit.NOT_FOUND
        assert "there is no tenant ten_none" in mistyped.stderr
        store.objects().delete([keys[digest_of(CONTENT)]])
        named = muster.run("content", "check", "--json", **variables)
        assert named.returncode == Exit.FAILED
        (missing,) = json.loads(named.stdout)["missing"]
        assert (missing["digest"], missing["bundles"]) == (digest_of(CONTENT), [digest_of(manifest)])
        marked = muster.run("content", "check", "--mark-missing", **variables)
        assert marked.returncode == Exit.OK, marked.stderr
        assert "1 bundles are incomplete now" in " ".join(marked.stdout.split())
        with units.begin(fleet.tenant, bundles.BEGIN) as unit:
            assert [each.digest for each in bundles.begin(unit, reading_of(manifest)).wanted] == [digest_of(CONTENT)]


def test_without_a_store_the_command_names_the_settings(muster: Command, database_url: str) -> None:
    refused = muster.run("content", "check", MUSTER_DATABASE_URL=database_url)
    assert refused.returncode == Exit.USAGE
    assert "no content store is configured" in " ".join(refused.stderr.split())
