"""Outputs and files on the page of a job: each link is signed when it is opened, leads to the bytes, and is audited."""

import re
from html import unescape

import httpx
import pytest
from sqlalchemy import select

from console.session import COOKIE
from control.tenants.sessions import sign_in_by_key
from muster.db.models import AuditEntry
from muster.domain.ids import JobId
from tests.cli.job.served_outputs import SUCCESS, ServedOutputs, outputs_once
from tests.console.conftest import words_of

__all__ = ["outputs_once"]
FILES = {"models/final.pt": b"weights" * 1_000, "odd & name/größe?.txt": b"two", "log.txt": b"lines"}
LINK = re.compile(r'href="(/console/jobs/[^"]+/file\?[^"]+)"')


@pytest.fixture(scope="module")
def job_id(outputs_once: ServedOutputs) -> JobId:  # the fixture of that module
    found, attempt_id, fence = outputs_once.started()
    outputs_once.upload(attempt_id, fence, {"models/step-20.pt": b"early"}, name="step-20")
    outputs_once.upload(attempt_id, fence, FILES)
    outputs_once.host().report(attempt_id, fence, "started", "exited", "cleaned", record=SUCCESS)
    outputs_once.fleet.reconcile()
    outputs_once.begun.clear()
    return found


def get(served: ServedOutputs, path: str, actor: str = "tenant_member") -> httpx.Response:
    token = sign_in_by_key(served.fleet.units, served.keyed.tokens[actor], address="127.0.0.1").text
    headers = {"Cookie": f"{COOKIE}={token}"}
    return httpx.get(f"{served.url}{path}", headers=headers, trust_env=False, timeout=60)


def links(served: ServedOutputs, path: str) -> list[str]:
    return [unescape(each) for each in LINK.findall(get(served, path).text)]


def test_the_page_of_a_job_lists_its_outputs_and_the_files_of_the_newest(
    outputs_once: ServedOutputs,
    job_id: JobId,
) -> None:
    told = words_of(get(outputs_once, f"/console/jobs/{job_id}").text)
    assert re.search(r"its end 1 0 3 .* step 20 1 0 1 ", told)
    assert "models/final.pt" in told
    assert "models/step-20.pt" not in told
    assert "models/final.pt" in words_of(get(outputs_once, f"/console/jobs/{job_id}").text), "its part is live"


def test_each_link_leads_to_the_files_bytes_and_each_read_is_audited(
    outputs_once: ServedOutputs,
    job_id: JobId,
) -> None:
    found = {}
    for link in links(outputs_once, f"/console/jobs/{job_id}"):
        answer = get(outputs_once, link)
        assert (answer.status_code, answer.headers["cache-control"]) == (303, "no-store")
        signed = answer.headers["location"]
        assert signed.startswith(outputs_once.store.url)
        got = httpx.get(signed, trust_env=False)
        assert got.status_code == 200
        assert got.headers["content-disposition"].startswith("attachment")
        found[httpx.URL(link).params["path"]] = got.content
    assert found == FILES
    with outputs_once.fleet.units.read() as session:
        entries = session.scalars(select(AuditEntry.detail).where(AuditEntry.action == "outputs.read")).all()
    assert {entry["path"] for entry in entries} == set(FILES)


def test_all_files_are_listed_and_filtered_by_their_beginning(
    outputs_once: ServedOutputs,
    job_id: JobId,
) -> None:
    where = f"/console/jobs/{job_id}/files"
    told = words_of(get(outputs_once, where).text)
    for path in (*FILES, "models/step-20.pt"):
        assert path in told
    filtered = words_of(get(outputs_once, f"{where}?prefix=models/").text)
    assert "models/step-20.pt" in filtered
    assert "log.txt" not in filtered
    assert "No such file" in words_of(get(outputs_once, f"{where}?prefix=none").text)


def test_another_tenant_gets_neither_list_nor_link_and_an_unknown_file_is_not_found(
    outputs_once: ServedOutputs,
    job_id: JobId,
) -> None:
    link = links(outputs_once, f"/console/jobs/{job_id}")[0]
    for path in (f"/console/jobs/{job_id}", f"/console/jobs/{job_id}/files", link):
        assert get(outputs_once, path, "other_tenant").status_code == 404
    assert get(outputs_once, f"/console/jobs/{job_id}/file?path=none").status_code == 404
    assert get(outputs_once, link, "auditor").status_code == 403, "contents need the right to read logs"


def test_a_job_that_names_outputs_and_has_none_yet_states_by_what(outputs_once: ServedOutputs, job_id: JobId) -> None:
    waiting = outputs_once.fleet.submit(outputs=["models/**"])
    told = words_of(get(outputs_once, f"/console/jobs/{waiting}").text)
    assert "Nothing is collected yet: hosts do it at checkpoints and at the end, by models/**" in told
    assert "No file was collected" in words_of(get(outputs_once, f"/console/jobs/{waiting}/files").text)
    outputs_once.fleet.cancel(waiting)


def test_a_host_whose_outputs_are_missing_is_named(outputs_once: ServedOutputs) -> None:
    waiting, attempt_id, fence = outputs_once.started()
    outputs_once.host().report(attempt_id, fence, "started", "exited", record=SUCCESS)
    outputs_once.host().report(attempt_id, fence, "cleaned", record={"outputs": "waiting"})
    outputs_once.fleet.reconcile()
    outputs_once.begun.clear()
    told = words_of(get(outputs_once, f"/console/jobs/{waiting}").text)
    assert re.search(r"Host 0 \(\S+\), at the end of attempt 1: it has them, and begins to upload them", told)
    outputs_once.upload(attempt_id, fence, {"model": b"weights"})
    assert "begins to upload" not in words_of(get(outputs_once, f"/console/jobs/{waiting}").text)
