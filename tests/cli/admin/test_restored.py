"""``muster restored``: the database came back from a backup."""

import json
from pathlib import Path

from muster.cli.framework.exits import Exit
from tests.cli.command import Command


def test_it_states_the_epochs_and_what_the_backup_lacks(database_url: str, tmp_path: Path) -> None:
    muster = Command(tmp_path)
    said = muster.run("restored", "--reason", "disk lost", MUSTER_DATABASE_URL=database_url)
    assert said.returncode == Exit.OK, said.stderr
    assert said.stdout.startswith("epoch 1 → ")
    assert "REVOKED" in said.stdout
    again = muster.run("restored", "--reason", "again", "--json", MUSTER_DATABASE_URL=database_url)
    found = json.loads(again.stdout)
    assert found["epoch"] == found["epoch_before"] + 1
    assert found["given_up"] == []


def test_without_a_reason_or_a_database_it_reports_it(database_url: str, tmp_path: Path) -> None:
    muster = Command(tmp_path)
    empty = muster.run("restored", "--reason", " ", MUSTER_DATABASE_URL=database_url)
    assert empty.returncode == Exit.USAGE
    assert "--reason is empty" in empty.stderr
    unnamed = muster.run("restored", "--reason", "disk lost")
    assert unnamed.returncode != Exit.OK
    assert "MUSTER_DATABASE_URL" in unnamed.stderr
