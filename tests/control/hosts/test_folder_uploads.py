"""Hosts upload outputs for parts of their own alone, also for a while after the end."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.content.manifests import Reading, reading_of
from control.content.types import Upload
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import folder_uploads
from control.policy.policies import ACTIVATE, store_policy
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import Event, JobOutput, StoredFolder
from muster.domain.errors import (
    ConflictError,
    NotFoundError,
    StaleFenceError,
    TenantLimitError,
    UpgradeRequiredError,
    ValidationFailedError,
)
from muster.domain.ids import AttemptId, JobId
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.document import Policy
from muster.domain.stored_content import FolderKind, FolderState
from muster.wire.content import FolderUploadsRequest, OutputsNote
from muster.wire.host import HOST_CAPABILITIES, PROTOCOL_VERSION
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, make_fleet
from tests.patient import patient_engine
from tests.played_host import PlayedHost

NONE = "0" * 64


def manifest(*contents: bytes) -> Reading:
    entries = (Entry(f"file{n}", Kind.FILE, len(one), (digest_of(one),)) for n, one in enumerate(contents))
    return reading_of(encode(Manifest(VERSION, tuple(entries))))


@pytest.fixture
def fleet(database_url: str, clock: SetClock) -> Iterator[Fleet]:
    with patient_engine(database_url) as engine:
        yield make_fleet(UnitOfWorkFactory(engine, clock=clock))


def host_of(fleet: Fleet) -> PlayedHost:
    return PlayedHost(fleet.units, fleet.node_id, seq=next(fleet.beats))


def placed(fleet: Fleet, **job: Any) -> tuple[JobId, AttemptId, int]:
    host_of(fleet).beat(capabilities=HOST_CAPABILITIES)
    job_id = fleet.submit(**job)
    fleet.cycle()
    attempt = fleet.attempts(job_id)[0].attempt
    return job_id, attempt.id, attempt.fence


def claimed(fleet: Fleet, **job: Any) -> tuple[JobId, AttemptId, int]:
    job_id, attempt_id, fence = placed(fleet, **job)
    capabilities = tuple(word for word in HOST_CAPABILITIES if word != "ready")
    order = host_of(fleet).claim(attempt_id, fence, capabilities=capabilities).order
    assert order is not None
    assert order.outputs is not None
    assert order.outputs.patterns == job.get("outputs", ())
    return job_id, attempt_id, fence


def begin(
    fleet: Fleet,
    part_id: str,
    fence: int,
    reading: Reading,
    name: str = "final",
    *,
    kind: str = "outputs",
    version: int = PROTOCOL_VERSION,
) -> Upload:
    with fleet.units.begin(fleet.node_principal, folder_uploads.BEGIN, quiet=True) as unit:
        return folder_uploads.begin(unit, part_id, kind, name, fence=fence, protocol=version, manifest=reading)


def confirm(fleet: Fleet, part_id: str, fence: int, digest: str, *uploaded: str, name: str = "final") -> Upload:
    request = FolderUploadsRequest(protocol=PROTOCOL_VERSION, fence=fence, digest=digest, uploaded=uploaded)
    with fleet.units.begin(fleet.node_principal, folder_uploads.CONFIRM, quiet=True) as unit:
        return folder_uploads.confirm(unit, part_id, "outputs", name, request)


def upload(fleet: Fleet, part_id: str, fence: int, reading: Reading, name: str = "final") -> Upload:
    wanted = [one.digest for one in begin(fleet, part_id, fence, reading, name).wanted]
    return confirm(fleet, part_id, fence, reading.digest, *wanted, name=name)


def stored(fleet: Fleet) -> list[tuple[str, int, int | None, str, FolderState]]:
    """Each row of outputs: job, rank, step, digest and state of its folder."""
    query = (
        select(JobOutput.job_id, JobOutput.node_rank, JobOutput.step, StoredFolder.digest, StoredFolder.state)
        .join(StoredFolder, StoredFolder.id == JobOutput.folder_id)
        .where(StoredFolder.kind == FolderKind.OUTPUTS, StoredFolder.tenant_id == fleet.tenant_id)
        .order_by(JobOutput.id)
    )
    with fleet.units.read() as session:
        return [(job, rank, step, digest, state) for job, rank, step, digest, state in session.execute(query)]


def events(fleet: Fleet, kind: str) -> list[dict[str, Any]]:
    with fleet.units.read() as session:
        return list(session.scalars(select(Event.payload).where(Event.kind == kind).order_by(Event.serial)))


def test_outputs_are_uploaded_for_checkpoints_and_the_end(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet, outputs=("models/**",))
    first, last = manifest(b"one"), manifest(b"one", b"two")
    begun = begin(fleet, attempt_id, fence, first, "step-100")
    assert (begun.folder.state, begun.num_missing, len(begun.wanted)) == (FolderState.UPLOADING, 2, 2)
    assert stored(fleet) == [(job_id, 0, 100, first.digest, FolderState.UPLOADING)]
    wanted = [one.digest for one in begun.wanted]
    assert confirm(fleet, attempt_id, fence, first.digest, wanted[0], name="step-100").num_missing == 1
    assert events(fleet, "job.outputs_stored") == []
    done = confirm(fleet, attempt_id, fence, first.digest, wanted[1], name="step-100")
    assert (done.folder.state, done.wanted) == (FolderState.COMPLETE, ())
    # The end shares a chunk with the step, which is not uploaded again.
    begun = begin(fleet, attempt_id, fence, last)
    assert digest_of(b"one") not in {one.digest for one in begun.wanted}
    upload(fleet, attempt_id, fence, last)
    assert stored(fleet)[1:] == [(job_id, 0, None, last.digest, FolderState.COMPLETE)]
    told = events(fleet, "job.outputs_stored")
    assert [(each["step"], each["num_files"], each["num_bytes"]) for each in told] == [(100, 1, 3), (None, 2, 6)]
    assert {each["attempt_id"] for each in told} == {attempt_id}


def test_the_same_folder_at_two_steps_is_stored_once(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    same = manifest(b"one")
    upload(fleet, attempt_id, fence, same, "step-1")
    again = begin(fleet, attempt_id, fence, same, "step-2")
    assert (again.folder.state, again.wanted) == (FolderState.COMPLETE, ())
    assert [(row[2], row[3]) for row in stored(fleet)] == [(1, same.digest), (2, same.digest)]
    assert begin(fleet, attempt_id, fence, same, "step-2").folder.state is FolderState.COMPLETE
    assert len(stored(fleet)) == 2
    assert job_id == stored(fleet)[0][0]


def test_a_broken_upload_may_begin_with_other_files_and_a_complete_one_stays(fleet: Fleet) -> None:
    _, attempt_id, fence = claimed(fleet)
    one, two = manifest(b"one"), manifest(b"two")
    begin(fleet, attempt_id, fence, one)
    upload(fleet, attempt_id, fence, two)
    assert [row[3] for row in stored(fleet)] == [two.digest]
    with pytest.raises(ConflictError, match="stored already"):
        begin(fleet, attempt_id, fence, manifest(b"three"))
    with pytest.raises(ConflictError, match="are not the folder"):
        confirm(fleet, attempt_id, fence, one.digest)
    with pytest.raises(ConflictError, match="given up"):
        confirm(fleet, attempt_id, fence, NONE)
    assert confirm(fleet, attempt_id, fence, two.digest).folder.state is FolderState.COMPLETE


def test_no_other_host_fence_kind_name_or_protocol_uploads(fleet: Fleet) -> None:
    job_id, attempt_id, fence = placed(fleet)
    one = manifest(b"one")
    with pytest.raises(StaleFenceError):
        begin(fleet, attempt_id, fence, one)
    fleet.cancel(job_id)
    fleet.reconcile()
    job_id, attempt_id, fence = claimed(fleet)
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (StaleFenceError, lambda: begin(other, attempt_id, fence, one)),
        (StaleFenceError, lambda: begin(fleet, attempt_id, fence + 1, one)),
        (StaleFenceError, lambda: begin(fleet, f"look-1-{job_id}", 1, one)),
        (StaleFenceError, lambda: confirm(other, attempt_id, fence, one.digest)),
        (NotFoundError, lambda: begin(fleet, attempt_id, fence, one, "step-01")),
        (NotFoundError, lambda: begin(fleet, attempt_id, fence, one, "../final")),
        (NotFoundError, lambda: begin(fleet, attempt_id, fence, one, kind="bundle")),
        (NotFoundError, lambda: begin(fleet, attempt_id, fence, one, kind="nothing")),
        (UpgradeRequiredError, lambda: begin(fleet, attempt_id, fence, one, version=2)),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()
    assert stored(fleet) == []


def test_the_upload_may_follow_the_end_for_a_day(fleet: Fleet, clock: SetClock) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    host_of(fleet).report(attempt_id, fence, "started")
    host_of(fleet).report(
        attempt_id, fence, "exited", record={"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0}}}
    )
    host_of(fleet).report(attempt_id, fence, "cleaned")
    fleet.reconcile()
    assert fleet.attempts(job_id)[0].attempt.ended_at == clock.now
    begin(fleet, attempt_id, fence, manifest(b"one"))
    clock.advance(timedelta(hours=24).total_seconds())
    with pytest.raises(StaleFenceError):
        confirm(fleet, attempt_id, fence, manifest(b"one").digest, digest_of(b"one"))


def test_limits_of_the_policy_are_kept(fleet: Fleet) -> None:
    policy = Policy(content=ContentPolicy(outputs_bytes=5, outputs_files=1, tenant_bytes=150))
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, policy, reason="a test")
    _, attempt_id, fence = claimed(fleet)
    with pytest.raises(ValidationFailedError, match=r"content\.outputs_bytes"):
        begin(fleet, attempt_id, fence, manifest(b"123456"))
    with pytest.raises(ValidationFailedError, match=r"content\.outputs_files"):
        begin(fleet, attempt_id, fence, manifest(b"1", b"2"))
    upload(fleet, attempt_id, fence, manifest(b"one"), "step-1")
    with pytest.raises(TenantLimitError, match=r"content\.tenant_bytes"):
        begin(fleet, attempt_id, fence, manifest(b"two"))
    assert len(stored(fleet)) == 1


def test_what_could_not_be_collected_is_noted_once(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    told = OutputsNote(
        protocol=PROTOCOL_VERSION, fence=fence, found="left_out", words="it is a device", num_paths=2, paths=("tty",)
    )

    def note(message: OutputsNote) -> bool:
        with fleet.units.begin(fleet.node_principal, folder_uploads.NOTE, quiet=True) as unit:
            return folder_uploads.note(unit, attempt_id, message).stored

    assert [note(told), note(told)] == [True, False]
    [noted] = events(fleet, "job.outputs_noted")
    assert (noted["words"], noted["paths"], noted["step"]) == ("it is a device", ["tty"], None)
    stale = OutputsNote(protocol=PROTOCOL_VERSION, fence=fence + 1, found="failed", words="late")
    with pytest.raises(StaleFenceError):
        note(stale)
    for number in range(folder_uploads.MOST_NOTES):
        note(OutputsNote(protocol=PROTOCOL_VERSION, fence=fence, found="failed", words=f"fault {number}"))
    assert len(events(fleet, "job.outputs_noted")) == folder_uploads.MOST_NOTES
    assert job_id
