"""Checkpoints on the page of a job: a link to each as an archive, signed when it is opened, and audited."""

import hashlib
import io
import json
import re
import tarfile
from html import unescape

import httpx
import pytest

from muster.domain.ids import JobId
from muster.domain.times import to_ms
from tests.cli.job.served_outputs import SUCCESS, ServedOutputs, outputs_once
from tests.console.conftest import words_of
from tests.console.test_job_outputs import get

__all__ = ["outputs_once"]
LINK = re.compile(r'href="(/console/jobs/[^"]+/archive[^"]*)"')


@pytest.fixture(scope="module")
def job_id(outputs_once: ServedOutputs) -> JobId:  # the fixture of that module
    """A job with the verified step 40 and the committed step 80."""
    served = outputs_once
    found, attempt_id, fence = served.started()
    offset = 0
    for step, status in ((40, "verified"), (80, "committed")):
        name = f"step-{step:08d}/gen-{fence}"
        place = served.checkpoints / found / name
        place.mkdir(parents=True)
        (place / "rank-00000.pt").write_bytes(b"weights")
        manifest = json.dumps({"files": [{"name": "rank-00000.pt", "size": 7}]}).encode()
        (place / "MANIFEST.json").write_bytes(manifest)
        digest, at_ms = hashlib.sha256(manifest).hexdigest(), to_ms(served.fleet.units.clock())
        reported = {"type": "checkpoint", "step": step, "generation": name, "status": status, "manifest_sha256": digest}
        offset = served.host().report_words(attempt_id, fence, reported, at_ms=at_ms, offset=offset).offset
    served.host().report(attempt_id, fence, "started", "exited", "cleaned", record=SUCCESS)
    served.fleet.reconcile()
    served.begun.clear()
    return found


def links(served: ServedOutputs, job_id: JobId, actor: str = "tenant_member") -> list[str]:
    return [unescape(each) for each in LINK.findall(get(served, f"/console/jobs/{job_id}", actor).text)]


def test_each_checkpoint_has_a_link_that_leads_to_its_files(outputs_once: ServedOutputs, job_id: JobId) -> None:
    found = links(outputs_once, job_id)
    assert [link.partition("?")[2] for link in found] == ["unverified=true", ""]
    for link, step in zip(found, (80, 40), strict=True):
        answer = get(outputs_once, link)
        assert (answer.status_code, answer.headers["cache-control"]) == (303, "no-store")
        got = httpx.get(answer.headers["location"], trust_env=False)
        with tarfile.open(fileobj=io.BytesIO(got.content)) as archive:
            [weights] = [name for name in archive.getnames() if name.endswith("rank-00000.pt")]
            assert weights.startswith(f"step-{step:08d}/")
    with outputs_once.client("tenant_admin") as client:
        read = list(client.audit_entries(action=["checkpoint.read"], subject=job_id))
    assert [(entry["detail"] or {})["step"] for entry in read] == [40, 80]


def test_one_that_was_not_verified_is_refused_without_that_word(outputs_once: ServedOutputs, job_id: JobId) -> None:
    answer = get(outputs_once, links(outputs_once, job_id)[0].partition("?")[0])
    assert answer.status_code == 409
    assert "COMMITTED" in words_of(answer.text)


def test_another_tenant_gets_no_link_and_an_auditor_sees_none(outputs_once: ServedOutputs, job_id: JobId) -> None:
    link = links(outputs_once, job_id)[1]
    assert get(outputs_once, link, "other_tenant").status_code == 404
    assert get(outputs_once, link, "auditor").status_code == 403
    assert links(outputs_once, job_id, "auditor") == []
