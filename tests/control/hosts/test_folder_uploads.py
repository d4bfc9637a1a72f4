"""Hosts upload outputs for parts of their own alone, also for a while after the end."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from control.content import check, collection
from control.content.manifests import Reading, reading_of
from control.content.types import ObjectName, Upload
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import folder_uploads
from control.policy.policies import ACTIVATE, store_policy
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import ContentUse, Event, FolderFile, JobOutput, StoredFolder
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
from muster.domain.stored_content import FolderKind, FolderState, ObjectKind
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


def end(fleet: Fleet, attempt_id: AttemptId, fence: int) -> None:
    record: dict[str, object] = {"launcher_exit_code": 0, "ranks": {"0": {"exit_code": 0}}}
    for kind in ("started", "exited", "cleaned"):
        host_of(fleet).report(attempt_id, fence, kind, record=record if kind == "exited" else None)
    fleet.reconcile()


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
        (ConflictError, lambda: begin(fleet, attempt_id, fence, one, kind="bundle")),
        (NotFoundError, lambda: begin(fleet, attempt_id, fence, one, kind="nothing")),
        (UpgradeRequiredError, lambda: begin(fleet, attempt_id, fence, one, version=2)),
    ]
    for kind, call in refused:
        with pytest.raises(kind):
            call()
    assert stored(fleet) == []


def test_the_upload_may_follow_the_end_for_a_day(fleet: Fleet, clock: SetClock) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    end(fleet, attempt_id, fence)
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


def test_what_could_not_be_collected_is_on_the_timeline_once(fleet: Fleet) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    told = OutputsNote(
        protocol=PROTOCOL_VERSION, fence=fence, found="left_out", words="it is a device", num_paths=2, paths=("tty",)
    )

    def note(message: OutputsNote) -> bool:
        with fleet.units.begin(fleet.node_principal, folder_uploads.NOTE, quiet=True) as unit:
            return folder_uploads.note(unit, attempt_id, message).stored

    assert [note(told), note(told)] == [True, False]
    [found] = events(fleet, "job.outputs_noted")
    assert (found["words"], found["paths"], found["step"]) == ("it is a device", ["tty"], None)
    stale = OutputsNote(protocol=PROTOCOL_VERSION, fence=fence + 1, found="failed", words="late")
    with pytest.raises(StaleFenceError):
        note(stale)
    for number in range(folder_uploads.MOST_NOTES):
        note(OutputsNote(protocol=PROTOCOL_VERSION, fence=fence, found="failed", words=f"fault {number}"))
    assert len(events(fleet, "job.outputs_noted")) == folder_uploads.MOST_NOTES
    assert job_id


def keep(fleet: Fleet) -> None:
    while collection.forget_outputs_once(fleet.units) or collection.expire_once(fleet.units):
        pass


def digests(fleet: Fleet) -> set[str]:
    with fleet.units.read() as session:
        return set(session.scalars(select(StoredFolder.digest)))


def test_outputs_stay_until_their_job_ended_long_ago(fleet: Fleet, clock: SetClock) -> None:
    job_id, attempt_id, fence = claimed(fleet)
    one, two = manifest(b"one"), manifest(b"one", b"two")
    upload(fleet, attempt_id, fence, one, "step-1")
    upload(fleet, attempt_id, fence, two)
    clock.advance(timedelta(days=200).total_seconds())
    keep(fleet)
    assert digests(fleet) == {one.digest, two.digest}, "the job has not ended"
    end(fleet, attempt_id, fence)
    clock.advance(timedelta(days=89).total_seconds())
    keep(fleet)
    assert len(stored(fleet)) == 2
    clock.advance(timedelta(days=2).total_seconds())
    keep(fleet)
    assert (stored(fleet), digests(fleet)) == ([], set())
    assert [each["num_outputs"] for each in events(fleet, "job.outputs_expired")] == [2]
    with fleet.units.read() as session:
        assert session.scalars(select(FolderFile)).all() == []
        assert session.scalar(select(ContentUse.num_bytes).where(ContentUse.tenant_id == fleet.tenant_id)) == 0
    assert job_id


def test_an_upload_that_was_given_up_goes_and_what_took_its_place_stays(fleet: Fleet, clock: SetClock) -> None:
    _, attempt_id, fence = claimed(fleet)
    begin(fleet, attempt_id, fence, manifest(b"stale"), "step-1")
    begin(fleet, attempt_id, fence, manifest(b"replaced"), "step-2")
    kept = manifest(b"kept")
    upload(fleet, attempt_id, fence, kept, "step-2")
    keep(fleet)
    assert digests(fleet) == {manifest(b"stale").digest, kept.digest}
    clock.advance(timedelta(hours=25).total_seconds())
    keep(fleet)
    assert digests(fleet) == {kept.digest}
    assert [row[2] for row in stored(fleet)] == [2]


def test_a_lost_chunk_does_not_take_the_other_files_of_outputs(fleet: Fleet) -> None:
    _, attempt_id, fence = claimed(fleet)
    two = manifest(b"one", b"two")
    upload(fleet, attempt_id, fence, two)
    lost = ObjectName(fleet.tenant_id, ObjectKind.CHUNK, digest_of(b"one"), 3)
    assert check.mark_missing(fleet.units, OPERATOR, [lost]) == 0
    assert [row[4] for row in stored(fleet)] == [FolderState.COMPLETE]
