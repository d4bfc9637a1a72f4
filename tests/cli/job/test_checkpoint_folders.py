"""``muster ckpt``: the checkpoints on a disk, read without a server and without torch."""

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from muster.cli.framework.exits import Exit
from muster.cli.job import checkpoint_folders
from muster.train.checkpoint import generations
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.keys import Keyring
from muster.train.checkpoint.manifest import MANIFEST
from muster.train.checkpoint.sealing import Sink, sealed
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.checkpoint.storage.stores import Store
from tests.cli.command import Command
from tests.train.checkpoint.test_generations import about, commit, part
from tests.train.object_stores import SECRET, Prefix, S3Server, serving


@pytest.fixture(scope="module")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def prefix(s3_server: S3Server, request: pytest.FixtureRequest) -> Prefix:
    return s3_server.prefix(request.node.name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    for step, fence in ((10, 1), (20, 1), (30, 2)):
        commit(folder, step, fence)
    return folder


def restorable(store: Store, step: int, fence: int = 1, *, content: bytes | None = None) -> Generation:
    """Commit a generation of two ranks that a resume can unpack. ``content``: that of rank 1 instead."""
    generation = Generation(step, fence)
    store.prepare(generation)
    buffer = io.BytesIO()
    torch.save({"model": {"w": torch.ones(40)}, "own": {}, "rng": {"python": [3, [1], None]}}, buffer)
    parts = [buffer.getvalue(), buffer.getvalue() if content is None else content]
    files = [store.write_part(generation, rank, part(each)) for rank, each in enumerate(parts)]
    store.commit(about(step, fence, files))
    return generation


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    folder = tmp_path / "trained"
    for step, fence in ((10, 1), (20, 1), (30, 2)):
        restorable(DiskStore(folder), step, fence)
    return folder


def reported(answer: CompletedProcess[str]) -> Any:
    return json.loads(answer.stdout)


def damage(folder: Path, generation: Generation, name: str = "rank-00001.pt") -> None:
    path = folder / generation.name / name
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)


def test_the_newest_comes_first_and_what_was_never_committed_is_stated(muster: Command, folder: Path) -> None:
    generations.prepare(folder, Generation(40, 2))
    answer = muster.run("ckpt", "ls", str(folder), "--json")
    assert answer.returncode == Exit.OK, answer.stderr
    assert [(one["step"], one["state"]) for one in reported(answer)] == [
        (40, "half written"),
        (30, "verified"),
        (20, "complete"),
        (10, "complete"),
    ]
    assert [one["num_ranks"] for one in reported(answer)] == [None, 2, 2, 2]


def test_a_byte_that_changed_shows_when_it_is_read_back_and_where_a_resume_goes_on(
    muster: Command, trained: Path
) -> None:
    damage(trained, Generation(30, 2))
    answer = muster.run("ckpt", "verify", str(trained))
    assert answer.returncode == Exit.FAILED
    assert "rank-00001.pt differs from what was saved" in " ".join(answer.stdout.split())
    assert "a resume continues after step 20" in " ".join(answer.stdout.split())
    states = [(one["step"], one["state"]) for one in reported(muster.run("ckpt", "verify", str(trained), "--json"))]
    assert states == [(30, "damaged"), (20, "verified")], "back to one that is good, and no further"
    whole = reported(muster.run("ckpt", "verify", str(trained), "--all", "--json"))
    assert [one["state"] for one in whole] == ["damaged", "verified", "verified"]


def test_a_listing_reads_the_newest_back_and_a_fast_one_states_that_it_does_not(muster: Command, folder: Path) -> None:
    damage(folder, Generation(10, 1))
    assert muster.run("ckpt", "ls", str(folder)).returncode == Exit.OK, "it asks about the newest"
    damage(folder, Generation(30, 2))
    answer = muster.run("ckpt", "ls", str(folder), "--json")
    assert answer.returncode == Exit.FAILED
    assert [one["state"] for one in reported(answer)] == ["damaged", "complete", "complete"]
    assert reported(answer)[0]["why"] == "rank-00001.pt differs from what was saved"
    assert "Only the newest was read back" in muster.run("ckpt", "ls", str(folder)).stdout
    fast = muster.run("ckpt", "ls", str(folder), "--fast")
    assert fast.returncode == Exit.OK, "their sizes are right"
    assert "By sizes alone (--fast): no file was read" in fast.stdout
    os.truncate(folder / Generation(30, 2).name / "rank-00000.pt", 100)
    assert muster.run("ckpt", "ls", str(folder), "--fast").returncode == Exit.FAILED


def test_a_person_sees_how_far_the_reading_is_and_a_program_reads_a_clean_stream(muster: Command, folder: Path) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "muster", "ckpt", "ls", str(folder), "--json"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(muster.folder), "TERM": "xterm", "COLUMNS": "120"}
    answer = subprocess.run(
        command, cwd=muster.folder, env=environment, stdout=subprocess.PIPE, stderr=theirs, check=False
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert answer.returncode == Exit.OK, shown
    assert "reading step-00000030/gen-2: 1.4 kB of 1.4 kB" in shown
    assert json.loads(answer.stdout)[0]["state"] == "verified"
    assert muster.run("ckpt", "ls", str(folder)).stderr == "", "a log needs no bars"


def test_a_short_file_shows_at_once(muster: Command, folder: Path) -> None:
    path = folder / Generation(30, 2).name / "rank-00000.pt"
    os.truncate(path, 100)
    answer = muster.run("ckpt", "ls", str(folder))
    assert answer.returncode == Exit.FAILED
    assert "holds 100 bytes instead of 701" in " ".join(answer.stdout.split())


def test_an_older_one_that_is_damaged_leaves_the_newest_good(muster: Command, trained: Path) -> None:
    damage(trained, Generation(10, 1))
    assert muster.run("ckpt", "verify", str(trained), "--all").returncode == Exit.OK
    shown = muster.run("ckpt", "show", str(trained), "--step", "10")
    assert shown.returncode == Exit.FAILED
    assert "differs from what was saved" in shown.stdout


def test_one_is_shown_with_each_ranks_file(muster: Command, folder: Path) -> None:
    answer = muster.run("ckpt", "show", str(folder), "--json")
    assert answer.returncode == Exit.OK, answer.stderr
    about = generations.read_manifest(folder, Generation(30, 2))
    assert [file["sha256"] for file in reported(answer)["files"]] == [file.sha256 for file in about.files]
    assert "2 ranks" in muster.run("ckpt", "show", str(folder)).stdout


def test_a_manifest_that_is_none_is_stated(muster: Command, folder: Path) -> None:
    (folder / Generation(30, 2).name / MANIFEST).write_text("{}")
    answer = muster.run("ckpt", "show", str(folder))
    assert answer.returncode == Exit.FAILED
    assert "was changed after it was written" in answer.stdout


def test_a_verification_tries_what_a_resume_tries(muster: Command, trained: Path) -> None:
    restorable(DiskStore(trained), 40, 2, content=b"no weights at all")
    answer = muster.run("ckpt", "verify", str(trained))
    said = " ".join(answer.stdout.split())
    assert answer.returncode == Exit.FAILED
    assert "rank-00001.pt cannot be unpacked: " in said
    assert "The newest cannot be used: a resume continues after step 30." in said
    (found, *_) = reported(muster.run("ckpt", "verify", str(trained), "--json"))
    assert found["state"] == "unusable"


def no_weights(file: Sink) -> None:
    file.write(b"no weights")


def test_a_checkpoint_under_a_key_is_decrypted_where_the_key_is(muster: Command, tmp_path: Path) -> None:
    keys, folder = tmp_path / "keys", tmp_path / "sealed"
    keys.write_text("ab" * 32)
    key = Keyring.read(keys).first
    store, generation = DiskStore(folder), Generation(10, 1)
    store.prepare(generation)
    files = [
        store.write_part(generation, rank, sealed(no_weights, key, f"{generation.name}/rank-{rank:05}.pt"))
        for rank in range(2)
    ]
    store.commit(replace(about(10, 1, files), key_id=key.id))
    assert "It is encrypted, and MUSTER_CHECKPOINT_KEY_FILE" in muster.run("ckpt", "verify", str(folder)).stdout
    answer = muster.run("ckpt", "verify", str(folder), MUSTER_CHECKPOINT_KEY_FILE=str(keys))
    assert answer.returncode == Exit.FAILED
    assert "rank-00000.pt cannot be unpacked" in " ".join(answer.stdout.split()), "it was decrypted"


def test_a_fence_that_lets_no_attempt_begin_is_no_success(muster: Command, trained: Path) -> None:
    assert muster.run("ckpt", "verify", str(trained)).returncode == Exit.OK
    (trained / "FENCE").write_text("seven")
    answer = muster.run("ckpt", "verify", str(trained))
    assert answer.returncode == Exit.FAILED
    assert "No attempt can begin." in answer.stdout


def test_it_needs_no_torch(muster: Command, folder: Path) -> None:
    (muster.folder / "torch.py").write_text("raise ImportError('there is no torch')")
    answer = muster.run("ckpt", "verify", str(folder), PYTHONPATH=str(muster.folder))
    assert answer.returncode == Exit.OK, answer.stderr
    assert "torch is not installed here: the bytes were compared" in " ".join(answer.stdout.split())


@pytest.mark.parametrize(
    ("words", "code", "reported"),
    [
        (("ls", "nowhere"), Exit.USAGE, "nowhere is no folder"),
        (("verify", "."), Exit.NOT_FOUND, "holds no checkpoint of muster.train"),
        (("show", "checkpoints", "--step", "7"), Exit.NOT_FOUND, "the newest are of 30, 20, 10"),
    ],
)
def test_what_is_not_there_is_named(
    muster: Command, folder: Path, words: tuple[str, ...], code: Exit, reported: str
) -> None:
    paths = [str(muster.folder / word) if word in {"nowhere", ".", "checkpoints"} else word for word in words]
    answer = muster.run("ckpt", *paths)
    assert answer.returncode == code, answer.stdout
    assert reported.lower() in " ".join(answer.stderr.split()).lower()


def test_what_lies_in_an_object_store_is_reported_by_the_same_words(muster: Command, prefix: Prefix) -> None:
    newest = [restorable(prefix.store(), step) for step in (10, 20)][-1]
    prefix.store().write_part(Generation(30, 1), 0, part(b"half"))
    environment = prefix.server.environment
    listed = reported(muster.run("ckpt", "ls", str(prefix.place), "--json", **environment))
    assert [(one["step"], one["state"]) for one in listed] == [(30, "half written"), (20, "verified"), (10, "complete")]
    assert muster.run("ckpt", "verify", str(prefix.place), **environment).returncode == Exit.OK
    prefix.flip(f"{newest.name}/rank-00001.pt")
    answer = muster.run("ckpt", "verify", str(prefix.place), **environment)
    assert answer.returncode == Exit.FAILED
    assert "a resume continues after step 10" in " ".join(answer.stdout.split())


def test_what_a_busy_store_does_not_give_is_not_called_damaged(prefix: Prefix, monkeypatch: pytest.MonkeyPatch) -> None:
    store = prefix.store()
    older, newer = (restorable(store, step) for step in (10, 20))
    busy = {newer.name}
    read = store._bucket.read

    def answered(key: str, size: int | None = None) -> Iterator[bytes]:
        if any(key.startswith(name) and "rank" in key for name in busy):
            raise OSError(errno.EIO, "get was refused: SlowDown (HTTP 503)", key)
        return read(key, size)

    monkeypatch.setattr(store._bucket, "read", answered)
    monkeypatch.setattr(checkpoint_folders, "_store", lambda _: store)
    found = checkpoint_folders.verify(str(prefix.place))
    assert [(one["step"], one["state"]) for one in found.found] == [(20, "unreadable"), (10, "verified")]
    assert "SlowDown" in found.found[0]["why"]
    assert found.notes == ["The newest cannot be read here and now, and may be whole; that of step 10 was verified."]
    busy.add(older.name)
    found = checkpoint_folders.verify(str(prefix.place))
    assert found.notes == ["None of 2 was verified; 2 cannot be read here and now, and may be whole."]


def test_a_store_that_cannot_be_requested_is_named_and_no_secret_with_it(muster: Command, prefix: Prefix) -> None:
    environment = prefix.server.environment
    for location, code, why in (
        (
            "s3://no-bucket/job",
            Exit.DENIED,
            "s3://no-bucket/job cannot be read: list was refused: NoSuchBucket (HTTP 404)",
        ),
        ("s3://NONE", Exit.USAGE, "'s3://NONE' is no place in an object store"),
        (f"{prefix.place}/empty", Exit.NOT_FOUND, "holds no checkpoint of muster.train"),
    ):
        answer = muster.run("ckpt", "ls", location, **environment)
        assert answer.returncode == code, answer.stderr
        assert why in " ".join(answer.stderr.split())
        assert SECRET not in answer.stderr
    (muster.folder / "boto3.py").write_text("raise ImportError('there is no boto3')")
    answer = muster.run("ckpt", "ls", str(prefix.place), **environment, PYTHONPATH=str(muster.folder))
    assert answer.returncode == Exit.USAGE
    assert "needs boto3, which is not installed here" in " ".join(answer.stderr.split())


def test_a_pin_is_a_mark_next_to_the_manifest_and_shows(muster: Command, folder: Path) -> None:
    answer = muster.run("ckpt", "pin", str(folder), "--step", "10")
    assert (answer.returncode, answer.stdout.strip()) == (Exit.OK, "step-00000010/gen-1  pinned")
    assert (folder / "step-00000010/gen-1/PINNED").exists()
    (folder / "step-00000020/gen-1/PINNED_BY_CONTROL_PLANE").touch()
    listed = reported(muster.run("ckpt", "ls", str(folder), "--json"))
    assert [(one["step"], one["is_pinned"]) for one in listed] == [(30, False), (20, True), (10, True)]
    assert muster.run("ckpt", "unpin", str(folder), "--step", "10").stdout.strip() == "step-00000010/gen-1  not pinned"
    assert "by the control plane still" in muster.run("ckpt", "unpin", str(folder), "--step", "20").stdout
    missing = muster.run("ckpt", "pin", str(folder), "--step", "7")
    assert missing.returncode == Exit.NOT_FOUND
    assert "there is no generation of step 7" in missing.stderr
    (folder / "step-00000030/gen-2" / MANIFEST).write_text("{")
    assert muster.run("ckpt", "pin", str(folder), "--step", "30").returncode == Exit.FAILED


def test_a_scrub_reads_all_of_them_and_one_damaged_old_one_is_no_success(muster: Command, trained: Path) -> None:
    assert muster.run("ckpt", "scrub", str(trained)).returncode == Exit.OK
    damage(trained, Generation(10, 1))
    assert muster.run("ckpt", "verify", str(trained)).returncode == Exit.OK, "it asks about the newest"
    answer = muster.run("ckpt", "scrub", str(trained), "--rate", "1GB")
    assert answer.returncode == Exit.FAILED
    assert "2 of 3 are as they were saved" in " ".join(answer.stdout.split())
    refused = muster.run("ckpt", "scrub", str(trained), "--rate", "0KB")
    assert refused.returncode == Exit.USAGE
    assert "nothing could be read at that rate" in " ".join(refused.stderr.split())
