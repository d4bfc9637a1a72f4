"""``muster bootstrap``: the first operator's key, by the holder of the database."""

import json
import stat
from pathlib import Path

from control.core.unit_of_work import UnitOfWorkFactory
from control.tenants import keys
from muster.cli.framework.exits import Exit
from muster.domain.principals import Role
from tests.cli.command import Command
from tests.patient import patient_engine


def role_of(database_url: str, path: Path) -> Role:
    with patient_engine(database_url) as engine:
        text = path.read_text().strip()
        return keys.authenticate(UnitOfWorkFactory(engine), text, address=None, request_id=None).role


def test_a_fresh_database_gets_an_operators_key_in_a_file_of_its_owners_alone(
    muster: Command, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "operator.key"
    answer = muster.run("bootstrap", str(path), MUSTER_DATABASE_URL=database_url)
    assert answer.returncode == Exit.OK, answer.stderr
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert role_of(database_url, path) is Role.OPERATOR
    assert path.read_text().strip() not in answer.stdout + answer.stderr


def test_a_key_that_opens_is_kept_and_one_that_does_not_is_made_again(
    muster: Command, database_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "operator.key"
    muster.run("bootstrap", str(path), MUSTER_DATABASE_URL=database_url)
    first = path.read_text()
    assert "as before" in muster.run("bootstrap", str(path), MUSTER_DATABASE_URL=database_url).stdout
    assert path.read_text() == first
    path.write_text("mst_of_another_database\n")
    muster.run("bootstrap", str(path), MUSTER_DATABASE_URL=database_url)
    assert role_of(database_url, path) is Role.OPERATOR


def test_a_file_that_holds_something_else_is_left_alone(muster: Command, database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a key\n")
    answer = muster.run("bootstrap", str(path), MUSTER_DATABASE_URL=database_url)
    assert answer.returncode == Exit.USAGE
    assert "something else than a key" in answer.stderr
    assert path.read_text() == "not a key\n"


def test_without_a_database_or_a_folder_it_states_what_is_missing(muster: Command, tmp_path: Path) -> None:
    unnamed = muster.run("bootstrap", str(tmp_path / "operator.key"))
    assert unnamed.returncode == Exit.USAGE
    assert "MUSTER_DATABASE_URL" in unnamed.stderr
    nowhere = muster.run("bootstrap", str(tmp_path / "no" / "x.key"), MUSTER_DATABASE_URL="postgresql://x@127.0.0.1/x")
    assert nowhere.returncode == Exit.USAGE
    assert "there is no folder" in nowhere.stderr


def test_an_audit_entry_states_what_made_it(muster: Command, database_url: str, tmp_path: Path) -> None:
    muster.run("bootstrap", str(tmp_path / "operator.key"), MUSTER_DATABASE_URL=database_url)
    with patient_engine(database_url) as engine, engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT action, actor, detail FROM audit_entries").all()
    (entry,) = rows
    assert (entry[0], entry[1]) == ("key.create", "operator:bootstrap")
    assert json.loads(json.dumps(entry[2]))["role"] == "operator"
