"""A job's datasets are checked before its program starts, by a process that may hang; real folders and manifests."""

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.train.data import dataset_manifest as manifests
from muster.train.data.dataset_paths import dataset_path
from tests.workers.host.supervisor.attempt_case import Attempt, until
from workers.host.supervisor import files
from workers.host.supervisor.datasets import DatasetCheck, UnfitDatasetError
from workers.host.supervisor.order import read_order
from workers.host.supervisor.preparation import UnreadyError

WITHIN_S = 100.0


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "shard-0.bin").write_bytes(b"0" * 100)
    (folder / "shard-1.bin").write_bytes(b"1" * 200)
    manifests.write(folder, manifests.describe(folder))
    return folder


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A manifest under our lease: each process that opens it waits 45 s, as on a file system without an answer."""
    path = tmp_path / "hanging.json"
    path.write_text("{}")
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)  # of the usual one we would die
    fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    yield path
    os.close(descriptor)


def named(path: Path, **more: object) -> dict[str, object]:
    return {"name": "corpus", "path": str(path), "manifest": None, "verify": "sizes", **more}


def ended(attempt: Attempt, *datasets: dict[str, object], within_s: float = WITHIN_S) -> dict[str, Any]:
    attempt.start("print('ran')", datasets=list(datasets), dataset_look_s=within_s)
    until((attempt.folder / files.EXIT).exists, "the exit record")
    return files.read_json(attempt.folder / files.EXIT) or {}


def test_what_is_there_lets_the_program_start(attempt: Attempt, corpus: Path) -> None:
    record = ended(attempt, named(corpus), named(corpus, verify="checksums"), named(corpus / "shard-1.bin"))
    assert (record["spawn_error"], record["launcher_exit_code"]) == (None, 0)


def spoiled(corpus: Path, how: str) -> dict[str, object]:
    shard = corpus / "a" / "shard-0.bin"
    if how == "no folder":
        return named(corpus / "absent")
    if how == "no file":
        shard.unlink()
    if how == "another size":
        shard.write_bytes(b"0" * 99)
    if how == "other bytes":
        shard.write_bytes(b"9" * 100)
        return named(corpus, verify="checksums")
    if how == "no manifest":
        return named(corpus, manifest="/nowhere/manifest.json")
    if how == "endless manifest":
        return named(corpus, manifest="/dev/zero")
    if how == "huge manifest":
        with (corpus / manifests.DATASET).open("wb") as file:
            file.truncate(1 << 40)
    if how == "a pipe":
        shard.unlink()
        os.mkfifo(shard)
        return named(corpus, verify="checksums")
    if how == "no JSON":
        (corpus / manifests.DATASET).write_text("{")
    return named(corpus)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("no folder", "absent is not there: No such file or directory"),
        ("no file", "a/shard-0.bin is missing: it is not there"),
        ("another size", "a/shard-0.bin is damaged: it holds 99 bytes instead of 100"),
        ("other bytes", "a/shard-0.bin is damaged: its SHA-256 is another"),
        ("no manifest", "/nowhere/manifest.json is not there"),
        ("no JSON", "it is not JSON"),
        ("endless manifest", "/dev/zero is no regular file"),
        ("huge manifest", "holds more than 64 MiB"),
        ("a pipe", "a/shard-0.bin is unreadable: it is no regular file"),
    ],
)
def test_what_is_not_as_the_job_states_is_the_tenants_by_name(
    attempt: Attempt, corpus: Path, how: str, why: str
) -> None:
    record = ended(attempt, spoiled(corpus, how))
    assert (record["spawn_fault"], record["lacks"]) == ("program", "dataset")
    assert record["spawn_error"].startswith("the dataset corpus: ")
    assert why in record["spawn_error"]
    assert record["launcher_exit_code"] is None


def test_bytes_that_differ_pass_where_sizes_alone_are_requested(attempt: Attempt, corpus: Path) -> None:
    (corpus / "shard-1.bin").write_bytes(b"9" * 200)
    assert ended(attempt, named(corpus))["launcher_exit_code"] == 0


def test_a_stop_ends_a_check_that_hangs(attempt: Attempt, tmp_path: Path, hanging: Path) -> None:
    attempt.start("pass", datasets=[named(tmp_path, manifest=str(hanging))], dataset_look_s=600.0)
    until((attempt.folder / files.IDENTITY).exists, "the supervisor")
    attempt.write(files.STOP, {"reason": "cancel", "grace_until_boottime_ns": 0})
    until(lambda: (files.read_json(attempt.folder / files.CLEAN) or {}).get("clean") is True, "the proof")
    record = files.read_json(attempt.folder / files.EXIT) or {}
    assert (record["spawn_fault"], record["stop_reason"]) == ("refused", "cancel")


@pytest.mark.parametrize("verify", ["sizes", "checksums"])
def test_storage_that_does_not_answer_is_the_hosts_fault(
    attempt: Attempt, tmp_path: Path, hanging: Path, verify: str
) -> None:
    record = ended(attempt, named(tmp_path, manifest=str(hanging), verify=verify), within_s=2.0)
    assert f"could not be read within 2 s: {tmp_path} does not answer" in record["spawn_error"]
    assert record["spawn_fault"] == "preflight"


def test_more_bytes_than_can_be_read_in_time_are_the_tenants(attempt: Attempt, corpus: Path) -> None:
    huge = corpus / "huge.bin"
    with huge.open("wb") as file:
        file.truncate(1 << 42)
    manifests.write(corpus, manifests.DatasetManifest((manifests.DataFile("huge.bin", 1 << 42, "0" * 64),)))
    record = ended(attempt, named(corpus, verify="checksums"), within_s=3.0)
    assert "its checksums were not all read within 3 s" in record["spawn_error"]
    assert record["spawn_fault"] == "program"


def test_more_files_than_can_be_checked_in_time_are_the_tenants(attempt: Attempt, corpus: Path) -> None:
    record = ended(attempt, *[named(corpus)] * 50_000, within_s=3.0)
    assert "its files are too many for 3 s" in record["spawn_error"]
    assert record["spawn_fault"] == "program"


def test_what_a_check_prints_next_to_is_no_answer(attempt: Attempt, corpus: Path) -> None:
    attempt.order(command=["true"], datasets=[named(corpus)], dataset_look_s=WITHIN_S)
    order = read_order(attempt.folder)
    order.datasets = [{**named(corpus), "path": 7}]
    look = DatasetCheck(order)
    with pytest.raises(UnreadyError, match="ended without a result: "):
        until(look.is_over, "the check")
    look.kill()


def test_the_first_dataset_that_fails_is_named_though_the_next_one_hangs(
    attempt: Attempt, corpus: Path, hanging: Path
) -> None:
    datasets = [named(corpus / "absent", name="first"), named(corpus, manifest=str(hanging))]
    attempt.order(command=["true"], datasets=datasets, dataset_look_s=WITHIN_S)
    look = DatasetCheck(read_order(attempt.folder))
    with pytest.raises(UnfitDatasetError, match="the dataset first: "):
        until(look.is_over, "the check")
    look.kill()


def test_the_program_finds_its_datasets_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_DATASETS", json.dumps({"corpus": "/mnt/corpus"}))
    assert dataset_path("corpus") == Path("/mnt/corpus")
    with pytest.raises(ValueError, match="names no dataset 'other'; it names corpus"):
        dataset_path("other")
