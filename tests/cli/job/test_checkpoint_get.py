"""``muster ckpt get``: what a real training saved on its hosts' file system, on the client's disk, and trained on."""

import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from muster.cli.framework.exits import Exit
from muster.client.checkpoint_downloads import PIECE_BYTES
from muster.domain.ids import JobId
from muster.domain.times import to_ms
from muster.train.checkpoint.generations import Generation, list_generations, verify
from tests.cli.command import Command
from tests.cli.job.served_outputs import ServedOutputs
from tests.train.marks import TRAINS
from tests.train.object_stores import SECRET, serving
from tests.train.train_case import Training, Zygote
from tests.waiting import wait_until

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from tests.train.tiny_program import of_width


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with closing(Zygote()) as found:
        yield found


@pytest.fixture(scope="module")
def eight_steps(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 4 and 8 of two ranks."""
    training = Training(zygote, tmp_path_factory.mktemp("eight"))
    training.run("--steps", "8", num_ranks=2)
    assert training.generations() == ["step-00000004/gen-1", "step-00000008/gen-1"]
    return training.checkpoints


class Saved:
    """A job whose hosts saved checkpoints, and reported them."""

    def __init__(self, outputs: ServedOutputs, saved: Path, **spec: object) -> None:
        self.outputs = outputs
        self.job_id, self._attempt_id, self._fence = outputs.started(**spec)
        self.folder = outputs.checkpoints / self.job_id
        shutil.copytree(saved, self.folder)
        self._offset = 0

    def report(self, step: int, status: str = "verified", **more: object) -> None:
        name = Generation(step, 1).name
        manifest = (self.folder / name / "MANIFEST.json").read_bytes()
        reported = {
            "type": "checkpoint",
            "step": step,
            "generation": name,
            "status": status,
            "at_unix_ms": to_ms(self.outputs.fleet.units.clock()),
            "bytes": 1,
            "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
            **more,
        }
        self.send(reported)

    def send(self, *messages: dict[str, object]) -> None:
        at_ms = to_ms(self.outputs.fleet.units.clock())
        answer = self.outputs.host().report_words(
            self._attempt_id, self._fence, *messages, at_ms=at_ms, offset=self._offset
        )
        assert answer.taken == len(messages)
        self._offset = answer.offset

    def reads(self) -> list[dict[str, Any]]:
        with self.outputs.client("tenant_admin") as client:
            found = client.audit_entries(action=["checkpoint.read"], subject=self.job_id)
            return [dict(entry["detail"] or {}) for entry in found]


@pytest.fixture
def saved(outputs: ServedOutputs, eight_steps: Path) -> Saved:
    found = Saved(outputs, eight_steps)
    found.report(4)
    found.report(8)
    return found


def test_the_newest_verified_one_comes_to_the_disk_and_a_training_resumes_from_it(
    saved: Saved, muster: Command, zygote: Zygote
) -> None:
    url = saved.outputs.url
    planned = muster.run("ckpt", "get", saved.job_id, "--dry-run", url=url)
    assert "step 8, VERIFIED" in planned.stdout
    assert not (muster.folder / saved.job_id).exists()
    got = muster.run("ckpt", "get", saved.job_id, "-o", "mine", url=url)
    assert got.returncode == 0, got.stderr
    assert "step 8, VERIFIED" in got.stderr, "its size is stated before it is fetched"
    folder = muster.folder / "mine"
    assert [each.name for each in list_generations(folder)] == ["step-00000008/gen-1"]
    verify(folder, Generation(8, 1))
    assert sorted(path.name for path in (folder / "step-00000008").iterdir()) == ["gen-1"]
    assert muster.run("ckpt", "verify", "mine").returncode == 0
    state: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("step-00000008/gen-*/rank-*.pt"), reverse=True):
        part = torch.load(path, weights_only=True)
        state |= {**part["model"], **part["own"]}
    of_width(16).load_state_dict(state)
    again = muster.run("ckpt", "get", saved.job_id, "-o", "mine", url=url)
    assert "is there already" in again.stdout
    training = Training(zygote, muster.folder / "job")
    training.checkpoints = folder
    steps = training.run("--steps", "10", num_ranks=2, MUSTER_FENCE="2").steps[0]
    assert list(steps) == [9, 10], "it continued with the step behind the checkpoint"
    [entry, *_] = saved.reads()
    assert (entry["step"], entry["generation"]) == (8, "step-00000008/gen-1")


def test_a_step_is_named_and_the_name_of_the_job_serves(saved: Saved, muster: Command) -> None:
    got = muster.run("ckpt", "get", f"{saved.job_id}:4", url=saved.outputs.url)
    assert got.returncode == 0, got.stderr
    assert [each.name for each in list_generations(muster.folder / saved.job_id)] == ["step-00000004/gen-1"]
    assert muster.run("ckpt", "get", f"{saved.job_id}:5", url=saved.outputs.url).returncode == 3
    wrong = muster.run("ckpt", "get", f"{saved.job_id}:last", url=saved.outputs.url)
    assert wrong.returncode == 2
    assert "'last' is no step" in wrong.stderr


def test_what_was_not_verified_is_refused_and_fetched_by_an_explicit_word_alone(
    outputs: ServedOutputs, eight_steps: Path, muster: Command
) -> None:
    job = Saved(outputs, eight_steps)
    job.report(4, "committed")
    refused = muster.run("ckpt", "get", job.job_id, url=outputs.url)
    assert refused.returncode == 5
    assert "no checkpoint" in refused.stderr
    assert "COMMITTED" in refused.stderr
    assert "--unverified" in refused.stderr
    job.send({"type": "checkpoint_rejected", "generation": "step-00000004/gen-1", "why": "a bit flipped"})
    refused = muster.run("ckpt", "get", f"{job.job_id}:4", url=outputs.url)
    assert refused.returncode == 5
    assert "a bit flipped" in refused.stderr
    forced = muster.run("ckpt", "get", f"{job.job_id}:4", "--unverified", url=outputs.url)
    assert forced.returncode == 0, forced.stderr
    assert "Warning: it is REJECTED" in forced.stderr
    archive = f"{outputs.url}/v1/jobs/{job.job_id}/checkpoints/{checkpoint_id(outputs, job.job_id)}/archive"
    headers = {"Authorization": f"Bearer {outputs.keyed.tokens['tenant_member']}"}
    assert httpx.get(archive, headers=headers, trust_env=False).status_code == 409
    assert httpx.get(f"{archive}?unverified=true", headers=headers, trust_env=False).status_code == 307


def checkpoint_id(outputs: ServedOutputs, job_id: JobId) -> str:
    with outputs.client() as client:
        return str(next(iter(client.checkpoints(job_id)))["id"])


def test_a_damaged_file_is_never_taken_for_the_checkpoint(saved: Saved, muster: Command) -> None:
    place = saved.folder / "step-00000008/gen-1/rank-00001.pt"
    content = bytearray(place.read_bytes())
    content[1000] ^= 1
    place.write_bytes(content)
    got = muster.run("ckpt", "get", saved.job_id, "-o", "mine", url=saved.outputs.url)
    assert got.returncode == 1
    assert "rank-00001.pt is not as it was saved" in got.stderr
    assert list_generations(muster.folder / "mine") == []
    place.unlink()
    gone = muster.run("ckpt", "get", saved.job_id, "-o", "mine", url=saved.outputs.url)
    assert gone.returncode == 8
    assert "was removed" in gone.stderr
    assert list_generations(muster.folder / "mine") == []


@pytest.mark.parametrize("changed", [{"name": "\x1b[2J"}, {"name": "../rank-00000.pt"}, {"name": ""}, {"size": -1}])
def test_a_manifest_of_files_that_no_runtime_writes_is_refused(
    outputs: ServedOutputs, eight_steps: Path, muster: Command, changed: dict[str, object]
) -> None:
    job = Saved(outputs, eight_steps)
    manifest = job.folder / "step-00000008/gen-1/MANIFEST.json"
    document = json.loads(manifest.read_bytes())
    document["files"][0] |= changed
    manifest.write_bytes(json.dumps(document).encode())
    job.report(8)
    refused = muster.run("ckpt", "get", job.job_id, "-o", "mine", url=outputs.url)
    assert refused.returncode == Exit.SERVER_FAULT, refused.stderr
    assert "the checkpoint's manifest" in refused.stderr
    assert "Repeat it later" not in refused.stderr
    assert "\x1b" not in refused.stderr
    assert not (muster.folder / "mine").exists()


def test_a_killed_download_continues_where_it_was(saved: Saved, muster: Command, zygote: Zygote) -> None:
    large = saved.folder / "step-00000008/gen-1/rank-00000.pt"
    content = os.urandom(300 * PIECE_BYTES)
    large.write_bytes(content)
    manifest = large.parent / "MANIFEST.json"
    document = json.loads(manifest.read_bytes())
    document["files"][0] |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    del document["self_sha256"]
    document["self_sha256"] = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    manifest.write_bytes(json.dumps(document, sort_keys=True).encode())
    saved.send({"type": "checkpoint_expired", "generation": "step-00000008/gen-1"})
    job = Saved(saved.outputs, saved.folder)
    job.report(8)
    part = muster.folder / "mine/step-00000008/.gen-1.partial/rank-00000.pt"
    command = [sys.executable, "-m", "muster", "ckpt", "get", job.job_id, "-o", "mine"]
    variables = {"MUSTER_API_URL": job.outputs.url, "MUSTER_API_KEY_FILE": str(muster.key_file)}
    environment = {"PATH": os.environ["PATH"], "HOME": str(muster.folder), **variables}
    process = subprocess.Popen(command, cwd=muster.folder, env=environment, stderr=subprocess.DEVNULL)
    wait_until(lambda: part.exists() and part.stat().st_size > PIECE_BYTES)
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    assert list_generations(muster.folder / "mine") == [], "a torn checkpoint never has its name"
    there = part.stat().st_size
    assert PIECE_BYTES < there < len(content)
    # What was fetched is not fetched again: the store would give other bytes for it.
    with (job.folder / "step-00000008/gen-1/rank-00000.pt").open("r+b") as file:
        file.write(bytes(there - there % 4096))
    again = muster.run("ckpt", "get", job.job_id, "-o", "mine", url=job.outputs.url)
    assert again.returncode == 0, again.stderr
    assert (muster.folder / "mine/step-00000008/gen-1/rank-00000.pt").read_bytes() == content


def test_one_address_has_the_whole_as_an_archive(saved: Saved) -> None:
    url = f"{saved.outputs.url}/v1/jobs/{saved.job_id}/checkpoints/{checkpoint_id(saved.outputs, saved.job_id)}/archive"
    tokens = saved.outputs.keyed.tokens
    with httpx.Client(trust_env=False) as http:
        answer = http.get(url, headers={"Authorization": f"Bearer {tokens['tenant_member']}"})
        assert answer.status_code == 307
        got = http.get(answer.headers["location"])
        with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
            assert {Path(name).name for name in archive.getnames()} == {
                "MANIFEST.json",
                "rank-00000.pt",
                "rank-00001.pt",
            }
        for role, status in (("other_tenant", 404), ("auditor", 403)):
            assert http.get(url, headers={"Authorization": f"Bearer {tokens[role]}"}).status_code == status
    assert [entry["what"] for entry in saved.reads()] == ["archive"]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({"store": "s3://models/team"}, "aws s3 cp --recursive s3://models/team/"),
        ({"folder": "/mnt/elsewhere"}, "store_checkpoint_dirs"),
    ],
)
def test_a_place_that_is_not_read_is_reported_with_what_to_do(
    outputs: ServedOutputs, eight_steps: Path, muster: Command, rule: dict[str, str], words: str
) -> None:
    job = Saved(outputs, eight_steps, checkpoint=rule)
    job.report(8)
    refused = muster.run("ckpt", "get", job.job_id, url=outputs.url)
    assert refused.returncode == 5
    shown = " ".join(refused.stderr.split())
    assert f"{next(iter(rule.values()))}/{job.job_id}/step-00000008/gen-1" in shown
    assert words in shown
    assert job.reads() == []


def test_one_in_a_store_of_the_jobs_comes_by_the_callers_own_credentials(
    outputs: ServedOutputs, eight_steps: Path, muster: Command, tmp_path: Path
) -> None:
    job = Saved(outputs, eight_steps, checkpoint={"store": "s3://checkpoints/team/"})
    job.report(8)
    with serving(tmp_path) as server:
        refused = muster.run(
            "ckpt", "get", job.job_id, url=outputs.url, **{**server.environment, "AWS_ACCESS_KEY_ID": ""}
        )
        assert refused.returncode == 5
        assert "AWS_ACCESS_KEY_ID" in refused.stderr
        absent = muster.run("ckpt", "get", job.job_id, url=outputs.url, **server.environment)
        assert absent.returncode == 3, absent.stderr
        for path in (job.folder / "step-00000008/gen-1").iterdir():
            server.prefix(f"team/{job.job_id}/step-00000008/gen-1").write(path.name, path.read_bytes())
        got = muster.run("ckpt", "get", job.job_id, "-o", "mine", url=outputs.url, **server.environment)
        assert got.returncode == 0, got.stderr
        assert SECRET not in got.stdout + got.stderr
        verify(muster.folder / "mine", Generation(8, 1))
        server.prefix(f"team/{job.job_id}/step-00000008/gen-1").flip("rank-00001.pt")
        damaged = muster.run("ckpt", "get", job.job_id, "-o", "other", url=outputs.url, **server.environment)
        assert damaged.returncode == 1
        assert "rank-00001.pt is not as it was saved" in damaged.stderr


@pytest.mark.parametrize("digest", ["", "X" * 64])
def test_a_checkpoint_whose_program_reported_no_digest_is_refused(
    outputs: ServedOutputs, eight_steps: Path, muster: Command, digest: str
) -> None:
    job = Saved(outputs, eight_steps)
    job.report(8, manifest_sha256=digest)
    refused = muster.run("ckpt", "get", job.job_id, url=outputs.url)
    assert refused.returncode == 5
    assert "has no digest" in refused.stderr


def test_a_checkpoint_that_only_its_host_has_is_reported(
    outputs: ServedOutputs, eight_steps: Path, muster: Command
) -> None:
    job = Saved(outputs, eight_steps)
    job.report(8)
    shutil.rmtree(job.folder)
    gone = muster.run("ckpt", "get", job.job_id, url=outputs.url)
    assert gone.returncode == 3
    assert "is on its host alone" in " ".join(gone.stderr.split())
