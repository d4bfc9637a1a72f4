"""``muster data``: the datasets on a disk, read without a server and without torch."""

import json
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from muster.train.data.dataset_manifest import DATASET
from tests.cli.command import Command
from tests.train.data.test_dataset_manifest import made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "corpus", a=b"1\n2\n", b=b"x" * 2_000)


def test_a_folder_is_described_and_verified_until_a_byte_changes(muster: Command, folder: Path) -> None:
    written = muster.run("data", "manifest", str(folder), "--lines", "a", "--json")
    assert written.returncode == Exit.OK, written.stderr
    said = json.loads(written.stdout)
    assert (said["num_files"], said["num_bytes"], said["num_samples"]) == (2, 2_004, 2)
    whole = muster.run("data", "verify", str(folder))
    assert (whole.returncode, "Whole: 2 files" in whole.stdout) == (Exit.OK, True), whole.stderr
    (folder / "b").write_bytes(b"x" * 1_999 + b"y")
    damaged = muster.run("data", "verify", str(folder), "--json")
    assert damaged.returncode == Exit.FAILED
    assert [(one["path"], one["what"]) for one in json.loads(damaged.stdout)] == [("b", "damaged")]


def test_a_manifest_may_lie_elsewhere_and_no_torch_is_needed(muster: Command, folder: Path) -> None:
    (muster.folder / "torch").mkdir()
    (muster.folder / "torch/__init__.py").write_text("raise ImportError('torch')", encoding="utf-8")
    out = str(muster.folder / "manifest.json")
    assert muster.run("data", "manifest", str(folder), "--out", out, PYTHONPATH=str(muster.folder)).returncode == 0
    assert not (folder / DATASET).exists()
    verified = muster.run("data", "verify", str(folder), "--manifest", out, PYTHONPATH=str(muster.folder))
    assert verified.returncode == Exit.OK, verified.stderr


def test_what_is_no_dataset_ends_with_words(muster: Command, folder: Path) -> None:
    nowhere = muster.run("data", "verify", str(folder / "nowhere"))
    assert (nowhere.returncode, "is not there" in nowhere.stderr) == (Exit.INVALID, True)
    no_place = muster.run("data", "manifest", str(folder), "--out", str(folder / "no/where.json"))
    assert (no_place.returncode, "cannot be written" in no_place.stderr) == (Exit.DENIED, True), no_place.stderr
