"""``muster job files`` and ``muster job get``: the whole way from a host's upload to the client's disk."""

import json
import os

import httpx
import pytest

from muster.content.manifest import CHUNK_BYTES
from muster.store.keys import chunk_key
from tests.cli.command import Command
from tests.cli.job.served_outputs import Files, ServedOutputs, manifest_of

pytestmark = pytest.mark.timeout(400)

MODEL = os.urandom(2 * CHUNK_BYTES + 77)
FILES: Files = {
    "models/model.pt": MODEL,
    "metrics.json": b'{"loss": 1}',
    "empty": b"",
    "run.sh": b"#!/bin/sh",
    "latest": "models",
}


def test_a_jobs_files_are_listed_and_fetched(outputs: ServedOutputs, muster: Command) -> None:
    job_id, attempt_id, fence = outputs.started()
    nothing = muster.run("job", "get", job_id, url=outputs.url)
    assert nothing.returncode == 3
    assert "MUSTER_OUTPUT_DIR" in nothing.stderr
    outputs.upload(attempt_id, fence, {"metrics.json": b"old"}, "step-100")
    outputs.upload(attempt_id, fence, FILES)
    listed = muster.run("job", "files", job_id, "--json", url=outputs.url)
    paths = [(each["path"], each["num_bytes"]) for each in json.loads(listed.stdout)]
    assert paths == [("empty", 0), ("metrics.json", 11), ("models/model.pt", len(MODEL)), ("run.sh", 9)]
    every = muster.run("job", "files", job_id, "--all", "--json", url=outputs.url)
    assert len(json.loads(every.stdout)) == 5
    of_a_step = muster.run("job", "files", job_id, "--all", "--step", "100", "--json", url=outputs.url)
    assert [each["step"] for each in json.loads(of_a_step.stdout)] == [100]
    got = muster.run("job", "get", job_id, "-o", "results", url=outputs.url)
    assert got.returncode == 0, got.stderr
    folder = muster.folder / "results"
    assert (folder / "models/model.pt").read_bytes() == MODEL
    assert (folder / "metrics.json").read_bytes() == b'{"loss": 1}'
    assert os.readlink(folder / "latest") == "models"  # noqa: PTH115
    assert os.access(folder / "run.sh", os.X_OK)
    assert not list(folder.rglob("*.muster-part"))
    again = muster.run("job", "get", job_id, "-o", "results", url=outputs.url)
    assert "has all files already" in again.stdout
    step = muster.run("job", "get", job_id, "--step", "100", "-o", "early", url=outputs.url)
    assert step.returncode == 0, step.stderr
    assert (muster.folder / "early/metrics.json").read_bytes() == b"old"
    one = muster.run("job", "get", job_id, "models", "-o", "one", url=outputs.url)
    assert one.returncode == 0, one.stderr
    assert [each.name for each in (muster.folder / "one").rglob("*") if each.is_file()] == ["model.pt"]
    assert muster.run("job", "get", job_id, "no/such", url=outputs.url).returncode != 0


def test_lists_are_the_same_in_pages_of_one(outputs: ServedOutputs) -> None:
    job_id, attempt_id, fence = outputs.started()
    outputs.upload(attempt_id, fence, {"b": b"1", "a": b"2"}, "step-100")
    outputs.upload(attempt_id, fence, {"c": b"3"})
    with outputs.client() as client:
        assert [each["step"] for each in client.outputs(job_id, limit=1)] == [None, 100]
        assert [each["path"] for each in client.files(job_id, limit=1)] == ["a", "b", "c"]


def test_other_bytes_stay_unless_they_are_to_be_replaced(outputs: ServedOutputs, muster: Command) -> None:
    job_id, attempt_id, fence = outputs.started()
    outputs.upload(attempt_id, fence, {"a": b"theirs", "b": b"b"})
    folder = muster.folder / "mine"
    folder.mkdir()
    (folder / "a").write_bytes(b"my own")
    refused = muster.run("job", "get", job_id, "-o", "mine", url=outputs.url)
    assert refused.returncode == 5
    assert "--overwrite" in refused.stderr
    assert (folder / "a").read_bytes() == b"my own"
    assert not (folder / "b").exists(), "nothing is written where something is refused"
    assert muster.run("job", "get", job_id, "-o", "mine", "--overwrite", url=outputs.url).returncode == 0
    assert (folder / "a").read_bytes() == b"theirs"


def test_nothing_is_written_past_a_link(outputs: ServedOutputs, muster: Command) -> None:
    job_id, attempt_id, fence = outputs.started()
    outputs.upload(attempt_id, fence, {"models/model.pt": b"weights"})
    (muster.folder / "elsewhere").mkdir()
    folder = muster.folder / "trap"
    folder.mkdir()
    (folder / "models").symlink_to(muster.folder / "elsewhere")
    refused = muster.run("job", "get", job_id, "-o", "trap", url=outputs.url)
    assert refused.returncode == 1
    assert "no folder of its own" in refused.stderr
    assert list((muster.folder / "elsewhere").iterdir()) == []


def test_a_broken_download_continues_and_fetches_the_rest_alone(outputs: ServedOutputs, muster: Command) -> None:
    job_id, attempt_id, fence = outputs.started()
    content = os.urandom(3 * CHUNK_BYTES)
    outputs.upload(attempt_id, fence, {"model": content})
    digests = list(manifest_of({"model": content})[1])[:3]
    places = [outputs.store.disk / "objects" / chunk_key(outputs.keyed.tenant_id, one) for one in digests]
    last = places[2].read_bytes()
    places[2].unlink()
    broken = muster.run("job", "get", job_id, "-o", "parts", url=outputs.url)
    assert broken.returncode == 8
    assert "the same command continues" in broken.stderr
    assert not (muster.folder / "parts/model").exists()
    [part] = (muster.folder / "parts").glob("*.muster-part")
    assert part.read_bytes()[: 2 * CHUNK_BYTES] == content[: 2 * CHUNK_BYTES]
    # What was fetched is not fetched again: the store has it no more.
    for each in places[:2]:
        each.unlink()
    places[2].write_bytes(last)
    assert muster.run("job", "get", job_id, "-o", "parts", url=outputs.url).returncode == 0
    assert (muster.folder / "parts/model").read_bytes() == content


def test_damaged_chunks_are_never_taken_for_the_file(outputs: ServedOutputs, muster: Command) -> None:
    job_id, attempt_id, fence = outputs.started()
    outputs.upload(attempt_id, fence, {"model": b"weights of a model"})
    digest = next(iter(manifest_of({"model": b"weights of a model"})[1]))
    (outputs.store.disk / "objects" / chunk_key(outputs.keyed.tenant_id, digest)).write_bytes(b"forged")
    got = muster.run("job", "get", job_id, "-o", "forged", url=outputs.url)
    assert got.returncode == 8
    assert "other bytes" in got.stderr
    assert not (muster.folder / "forged/model").exists()


def test_a_file_is_read_by_its_address_alone(outputs: ServedOutputs) -> None:
    job_id, attempt_id, fence = outputs.started()
    outputs.upload(attempt_id, fence, {"model.pt": b"early"}, "step-5")
    outputs.upload(attempt_id, fence, {"model.pt": b"last one"})
    headers = {"Authorization": f"Bearer {outputs.keyed.tokens['tenant_member']}"}
    url = f"{outputs.url}/v1/jobs/{job_id}/files/model.pt"
    with httpx.Client(trust_env=False) as http:
        answer = http.get(url, headers=headers)
        assert answer.status_code == 307
        assert http.get(answer.headers["location"]).content == b"last one"
        assert http.get(answer.headers["location"], headers={"Range": "bytes=5-"}).content == b"one"
        early = http.get(url, headers=headers, params={"step": "5"}, follow_redirects=True)
        assert early.content == b"early"
        assert http.get(f"{url}.none", headers=headers).status_code == 404
        for role, status in (("other_tenant", 404), ("auditor", 403)):
            other = {"Authorization": f"Bearer {outputs.keyed.tokens[role]}"}
            assert http.get(url, headers=other).status_code == status
    with outputs.client("tenant_admin") as client:
        read = list(client.audit_entries(action=["outputs.read"], subject=job_id))
    assert [entry["detail"]["path"] for entry in read] == ["model.pt", "model.pt"]
