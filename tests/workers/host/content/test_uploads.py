"""A host uploads a folder until the store has it, whatever fails meanwhile, or the control plane takes it no more."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from control.policy.policies import ACTIVATE, store_policy
from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.client.transport import Problem, UnreachableError
from muster.client.uploads import FolderContent
from muster.content.read import open_file, read_folder
from muster.domain.ids import JobId
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.document import Policy
from muster.store.faults import NOT_CONFIGURED
from muster.wire.content import FolderUploadAnswer
from muster.wire.host import HOST_CAPABILITIES
from tests.fleet_factory import OPERATOR, Fleet
from tests.played_host import PlayedHost
from workers.host.content.uploads import (
    MOST_WITHOUT_STORE,
    HostUpload,
    PartFolder,
    StoredAlreadyError,
    UploadEndedError,
)

from .stored_outputs import outputs_of
from .stores import S3, bundles_host

Part = tuple[JobId, str, int]


@pytest.fixture
def part(fleet: Fleet) -> Part:
    """The job, attempt and fence that the host has."""
    host = PlayedHost(fleet.units, fleet.node_id, seq=next(fleet.beats))
    host.beat(capabilities=HOST_CAPABILITIES)
    job_id = fleet.submit()
    fleet.cycle()
    attempt = fleet.attempts(job_id)[0].attempt
    assert host.claim(attempt.id, attempt.fence).granted
    return job_id, attempt.id, attempt.fence


@pytest.fixture
def client(fleet: Fleet, api_url: str, tmp_path: Path) -> Iterator[HostClient]:
    at = bundles_host(fleet.units, fleet.node_id, tmp_path / "host" / "state", api_url)
    with closing(HostClient(api_url, KeyFile(at.key_file))) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "left"
    (found / "logs").mkdir(parents=True)
    (found / "model.pt").write_bytes(os.urandom(9 << 20))
    for number in range(20):
        (found / "logs" / f"{number}").write_bytes(str(number).encode())
    return found


def content_of(folder: Path) -> FolderContent:
    return FolderContent.of(read_folder(folder), partial(open_file, folder))


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Faulty(PartFolder):
    """Calls that fail before some of them succeed."""

    def __init__(self, *given: object, faults: list[Exception]) -> None:
        super().__init__(*given)  # type: ignore[arg-type]  # as given
        self.faults = faults

    def begin(self, manifest: bytes) -> FolderUploadAnswer:
        self._fail()
        return super().begin(manifest)

    def confirm(self, uploaded: object) -> FolderUploadAnswer:
        self._fail()
        return super().confirm(uploaded)  # type: ignore[arg-type]  # as given

    def _fail(self) -> None:
        if self.faults:
            raise self.faults.pop(0)


def test_a_folder_is_uploaded_once(fleet: Fleet, s3: S3, client: HostClient, part: Part, folder: Path) -> None:
    job_id, attempt_id, fence = part
    told: list[tuple[int, int]] = []
    for name, step in (("step-10", 10), ("final", None)):
        sender = PartFolder(client, attempt_id, fence, "outputs", name)
        content = content_of(folder)
        digest = HostUpload(sender, content, on_progress=lambda *now: told.append(now)).run()
        assert digest == read_folder(folder).digest
        assert outputs_of(fleet, s3, job_id)[attempt_id, step] == files_of(folder)
    assert told[-1][0] == told[-1][1] > 9 << 20


def test_what_fails_for_a_while_is_tried_again(
    fleet: Fleet, s3: S3, client: HostClient, part: Part, folder: Path
) -> None:
    job_id, attempt_id, fence = part
    faults = [
        UnreachableError("the server does not answer"),
        Problem(404, "not_found", "an older process"),
        Problem(429, "tenant_limit", "the tenant stores too much", retry_after_s=60),
        Problem(409, "conflict", NOT_CONFIGURED),
    ]
    noted: list[str] = []
    paused: list[float] = []
    sender = Faulty(client, attempt_id, fence, "outputs", "final", faults=faults)
    HostUpload(sender, content_of(folder), note=noted.append, pause=paused.append).run()
    assert outputs_of(fleet, s3, job_id)[attempt_id, None] == files_of(folder)
    assert noted[:3] == ["the server does not answer", "an older process", "the tenant stores too much"]
    assert 15 <= max(paused) <= 30, "a full store is not asked at once"


def test_a_control_plane_without_a_store_ends_the_upload(client: HostClient, part: Part, folder: Path) -> None:
    _, attempt_id, fence = part
    faults: list[Exception] = [Problem(409, "conflict", NOT_CONFIGURED) for _ in range(2 * MOST_WITHOUT_STORE)]
    paused: list[float] = []
    sender = Faulty(client, attempt_id, fence, "outputs", "final", faults=faults)
    with pytest.raises(UploadEndedError, match="no content store is configured"):
        HostUpload(sender, content_of(folder), pause=paused.append).run()
    assert 180 <= sum(paused) <= 600, "a control plane that lacks its store for a moment costs no outputs"


def test_an_upload_that_was_given_up_begins_again(
    fleet: Fleet, s3: S3, client: HostClient, part: Part, folder: Path
) -> None:
    job_id, attempt_id, fence = part
    sender = Faulty(client, attempt_id, fence, "outputs", "final", faults=[])
    real, given_up = sender.confirm, [Problem(409, "conflict", "the upload was given up")]

    def confirm(uploaded: object) -> FolderUploadAnswer:
        sender.faults += given_up
        given_up.clear()
        return real(uploaded)

    sender.confirm = confirm  # type: ignore[method-assign]  # the first of the calls fails
    HostUpload(sender, content_of(folder), pause=lambda _: None).run()
    assert outputs_of(fleet, s3, job_id)[attempt_id, None] == files_of(folder)


def test_another_end_is_no_upload(client: HostClient, part: Part, folder: Path) -> None:
    _, attempt_id, fence = part
    sender = PartFolder(client, attempt_id, fence, "outputs", "final")
    HostUpload(sender, content_of(folder)).run()
    (folder / "model.pt").write_bytes(b"another")
    with pytest.raises(StoredAlreadyError, match="are stored already"):
        HostUpload(sender, content_of(folder)).run()


def test_a_part_that_is_not_this_hosts_ends_the_upload(client: HostClient, part: Part, folder: Path) -> None:
    _, attempt_id, fence = part
    for at in ((attempt_id, fence + 1), ("att_00000000000000000000000000", fence)):
        with pytest.raises(UploadEndedError, match="attempt"):
            HostUpload(PartFolder(client, *at, "outputs", "final"), content_of(folder)).run()


def test_more_than_is_accepted_ends_the_upload(fleet: Fleet, client: HostClient, part: Part, folder: Path) -> None:
    _, attempt_id, fence = part
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(content=ContentPolicy(outputs_bytes=1000)), reason="a test")
    with pytest.raises(UploadEndedError, match="outputs_bytes"):
        HostUpload(PartFolder(client, attempt_id, fence, "outputs", "final"), content_of(folder)).run()


def test_the_time_of_an_upload_ends(client: HostClient, part: Part, folder: Path) -> None:
    _, attempt_id, fence = part
    left = iter([True, True, False])
    faults: list[Exception] = [UnreachableError("gone")] * 9
    may_go_on: Callable[[], bool] = lambda: next(left)  # noqa: E731  # named for what it is
    sender = Faulty(client, attempt_id, fence, "outputs", "final", faults=faults)
    with pytest.raises(UploadEndedError, match="gone"):
        HostUpload(sender, content_of(folder), may_go_on=may_go_on, pause=lambda _: None).run()
    assert len(faults) == 6
