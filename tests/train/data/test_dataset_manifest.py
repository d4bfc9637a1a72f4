"""The identity of a dataset, computed from its files alone: nothing outside the folder, nothing that changed unseen."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.train.data import dataset_manifest as manifests
from muster.train.data.dataset_manifest import DATASET, DatasetError


def made(folder: Path, **contents: bytes) -> Path:
    """``train__a`` is the file ``train/a``."""
    for name, content in contents.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "corpus", train__a=b"one\ntwo\nthree", train__b=b"four\n", notes=b"", other=b"x" * 3_000_000)


def test_a_manifest_names_each_file_and_reads_back_as_it_was_written(folder: Path) -> None:
    manifest = manifests.describe(folder, lines="train/*")
    assert [(file.path, file.size, file.num_samples) for file in manifest.files] == [
        ("notes", 0, None),
        ("other", 3_000_000, None),
        ("train/a", 13, 3),
        ("train/b", 5, 1),
    ]
    assert (manifest.num_bytes, manifest.num_samples) == (3_000_018, 4)
    manifests.write(folder, manifest)
    assert manifests.read(folder) == manifest
    assert manifests.describe(folder, lines="train/*") == manifest, "the manifest is no part of the dataset"
    assert manifests.differences(folder, manifest) == []


def test_equal_bytes_at_equal_places_have_an_equal_hash(folder: Path, tmp_path: Path) -> None:
    same = made(tmp_path / "same", notes=b"", other=b"x" * 3_000_000, train__a=b"one\ntwo\nthree", train__b=b"four\n")
    moved = made(tmp_path / "moved", notes=b"", other=b"x" * 3_000_000, train__a=b"one\ntwo\nthree", b=b"four\n")
    sha256 = manifests.describe(folder).sha256
    assert sha256 == manifests.describe(same, lines="*").sha256, "what was counted is no part of the bytes"
    assert sha256 != manifests.describe(moved).sha256


def test_each_damaged_missing_and_extra_file_is_named(folder: Path) -> None:
    manifest = manifests.describe(folder)
    (folder / "other").write_bytes(b"x" * 2_999_999 + b"y")
    (folder / "train/b").write_bytes(b"four")
    (folder / "train/a").unlink()
    made(folder, new=b"")
    found = {each.path: (each.what, each.why) for each in manifests.differences(folder, manifest)}
    assert found == {
        "new": ("extra", "the manifest does not name it"),
        "other": ("damaged", "its SHA-256 is another"),
        "train/a": ("missing", "it is not there"),
        "train/b": ("damaged", "it holds 4 bytes instead of 5"),
    }


def test_a_link_within_the_folder_is_its_file_and_one_that_leads_out_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "again").symlink_to("train/a")
    assert {file.path for file in manifests.describe(folder).files} == {"again", "notes", "other", "train/a", "train/b"}
    (tmp_path / "secret").write_text("not for jobs", encoding="utf-8")
    (folder / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(DatasetError, match="out is a link that leads out of the folder"):
        manifests.describe(folder)
    (folder / "out").unlink()
    (folder / "out").symlink_to(folder / "train", target_is_directory=True)
    with pytest.raises(DatasetError, match="out is neither a file nor a link to one"):
        manifests.describe(folder)


def test_what_holds_no_dataset_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="is no folder"):
        manifests.describe(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="holds no file"):
        manifests.describe(tmp_path)
    with pytest.raises(DatasetError, match="muster data manifest"):
        manifests.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        ({"schema": 2}, "schema must be 1"),
        ({"files": []}, "files must be a list of one entry or more"),
        ({"files": [3]}, r"files\[0\] must be a JSON object"),
        ({"path": "../a"}, r"files\[0\].path must lie below the folder"),
        ({"path": "/etc/passwd"}, r"files\[0\].path must lie below the folder"),
        ({"path": "a//b"}, r"files\[0\].path must lie below the folder"),
        ({"size": -1}, r"files\[0\].size must be a number of bytes"),
        ({"size": True}, r"files\[0\].size must be a number of bytes"),
        ({"sha256": "AB"}, r"files\[0\].sha256 must be 64 digits"),
        ({"num_samples": "many"}, r"files\[0\].num_samples must be a number"),
        ({"size": 6}, "it was changed after it was written"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused_by_the_field(
    tmp_path: Path, change: dict[str, Any], reported: str
) -> None:
    document = json.loads(manifests.dump(manifests.describe(made(tmp_path, a=b"12345"))))
    whole = {name: value for name, value in change.items() if name in {"schema", "files"}}
    document |= whole
    if not whole:
        document["files"][0] |= change
    (tmp_path / DATASET).write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DatasetError, match=reported):
        manifests.read(tmp_path)


def test_a_file_named_twice_is_refused(tmp_path: Path) -> None:
    document = json.loads(manifests.dump(manifests.describe(made(tmp_path, a=b"12345"))))
    document["files"] *= 2
    with pytest.raises(DatasetError, match="each once"):
        manifests.parse(json.dumps(document).encode())
