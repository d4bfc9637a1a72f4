"""One part builds an environment; all others wait for it, fetch it, or learn why it cannot be built."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import func, select, update

from control.content import collection
from control.content.manifests import reading_of
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import bundles, environments, folder_uploads, node_labels, protocol
from control.jobs import environments as job_environments
from control.jobs import jobs
from control.policy.policies import ACTIVATE, store_policy
from control.training import training
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import (
    Checkpoint,
    EnvironmentBuild,
    EnvironmentJob,
    FolderJob,
    PlacementPreflight,
    StoredFolder,
    Tenant,
)
from muster.domain.errors import ConflictError, NoSuchBundleError, NotFoundError, StaleFenceError
from muster.domain.ids import JobId, TenantId
from muster.domain.job.environment_builds import BuildState
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.policy.environment import EnvironmentPolicy
from muster.domain.states import JobState
from muster.domain.stored_content import FolderKind, FolderState
from muster.domain.times import to_ms
from muster.identity import new_id
from muster.store.key_file import KeyFile
from muster.store.objects import ObjectStore
from muster.wire.content import (
    DownloadsRequest,
    EnvironmentAnswer,
    EnvironmentFailure,
    EnvironmentRequest,
    FolderUploadsRequest,
)
from muster.wire.host import (
    HOST_CAPABILITIES,
    PROTOCOL_VERSION,
    ClaimRequest,
    HeartbeatRequest,
    PreflightOrder,
    PreflightReport,
)
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, Fleet, enrol_host, fleet_of, make_fleet
from tests.stored_bundles import store_bundle

MANIFEST = encode(Manifest(VERSION, (Entry("train.py", Kind.FILE, 7, (digest_of(b"print()"),)),)))
BUNDLE = digest_of(MANIFEST)
PROGRAM = {"script": "train.py", "bundle": BUNDLE, "environment": {"lock": "uv.lock", "from_host": ["torch"]}}
BUILT = "e" * 64
KEY = "a1" * 32


@dataclass(frozen=True)
class Part:
    """A job and the part of it that a host has: a preflight."""

    fleet: Fleet
    job_id: JobId
    part_id: str
    fence: int

    def ask(self, key: str = KEY, built: str | None = None) -> EnvironmentAnswer:
        request = EnvironmentRequest(
            protocol=PROTOCOL_VERSION,
            fence=self.fence,
            interpreter="cpython-3.11",
            platform="linux_x86_64_glibc_2.36",
            built=built,
        )
        with self.fleet.units.begin(self.fleet.node_principal, environments.ASK, quiet=True) as unit:
            return environments.ask(unit, self.part_id, key, request).answer

    def fail(self, words: str, *, is_final: bool, line: int | None = None, log: str = "") -> bool:
        failure = EnvironmentFailure(
            protocol=PROTOCOL_VERSION, fence=self.fence, words=words, is_final=is_final, line=line, log=log
        )
        with self.fleet.units.begin(self.fleet.node_principal, environments.FAIL, quiet=True) as unit:
            return environments.fail(unit, self.part_id, KEY, failure).accepted

    def report(self, found: Any, why: str = "") -> None:
        self.fleet_beat(PreflightReport(preflight_id=self.part_id, found=found, why=why))

    def fleet_beat(self, *reports: PreflightReport) -> tuple[PreflightOrder, ...]:
        return beat(self.fleet, *reports)


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    made = make_fleet(units)
    store_bundle(made.units, made.tenant, MANIFEST)
    return made


def beat(
    fleet: Fleet, *reports: PreflightReport, capabilities: tuple[str, ...] = HOST_CAPABILITIES
) -> tuple[PreflightOrder, ...]:
    request = HeartbeatRequest(
        protocol=PROTOCOL_VERSION,
        boot_id="boot-1",
        seq=next(fleet.beats),
        capabilities=capabilities,
        preflights=reports,
    )
    with fleet.units.begin(fleet.node_principal, protocol.HEARTBEAT, quiet=True) as unit:
        return protocol.heartbeat(unit, request).preflights


def requested(fleet: Fleet, job_id: JobId) -> Part:
    with fleet.units.read() as session:
        look = session.get_one(PlacementPreflight, job_id)
        return Part(replace(fleet, node_id=look.node_id), job_id, look.preflight_id, look.number)


def begun(fleet: Fleet) -> Part:
    """A new job on a host that checks it."""
    beat(fleet)
    job_id = fleet.submit(program=PROGRAM)
    fleet.cycle()
    return requested(fleet, job_id)


def two_parts(fleet: Fleet) -> tuple[Part, Part]:
    """Two jobs on two hosts."""
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    first = begun(fleet)
    beat(other)
    job_id = fleet.submit(program=PROGRAM)
    fleet.cycle()
    second = requested(fleet, job_id)
    assert second.fleet.node_id == other.node_id, "a host makes one build of a tenant at a time"
    return first, second


def test_a_host_that_can_build_comes_before_one_that_cannot(fleet: Fleet) -> None:
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    beat(fleet)
    beat(other, capabilities=(*HOST_CAPABILITIES, "packages"))
    jobs_of = [fleet.submit(program=PROGRAM)]
    fleet.cycle()
    assert requested(fleet, jobs_of[0]).fleet.node_id == other.node_id
    beat(other, capabilities=HOST_CAPABILITIES)
    beat(fleet, capabilities=(*HOST_CAPABILITIES, "packages"))
    fleet.cancel(jobs_of[0])
    jobs_of.append(fleet.submit(program=PROGRAM))
    fleet.cycle()
    assert requested(fleet, jobs_of[1]).fleet.node_id == fleet.node_id


def stored(fleet: Fleet, *, state: FolderState = FolderState.COMPLETE) -> None:
    """A folder of an environment, as the upload of a host leaves it."""
    now = fleet.units.clock()
    with fleet.units.begin(OPERATOR, collection.EXPIRE, quiet=True) as unit:
        folder = StoredFolder(
            tenant_id=fleet.tenant_id,
            kind=FolderKind.ENVIRONMENT,
            digest=BUILT,
            num_bytes=10,
            num_files=1,
            state=state,
            created_by="node",
            created_at=now,
            active_at=now,
            completed_at=now if state is FolderState.COMPLETE else None,
        )
        unit.session.add(folder)


def build_of(fleet: Fleet) -> EnvironmentBuild:
    with fleet.units.read() as session:
        return session.scalars(select(EnvironmentBuild)).one()


def test_a_job_with_an_environment_is_checked_first_and_only_by_a_host_that_builds(fleet: Fleet) -> None:
    beat(fleet, capabilities=tuple(each for each in HOST_CAPABILITIES if each != "environment"))
    job_id = fleet.submit(program=PROGRAM)
    fleet.cycle()
    with fleet.units.read() as session:
        assert session.get(PlacementPreflight, job_id) is None, "a host of an earlier release is not asked"
    assert fleet.job(job_id).state is JobState.QUEUED
    assert fleet.job(job_id).state_reason == "no host that is in contact and open to jobs builds environments"
    assert fleet.attempts(job_id) == []
    [order] = [] if beat(fleet) else _ordered(fleet)
    assert order.order.environment is not None
    assert (order.order.environment.lock, order.order.environment.from_host) == ("uv.lock", ("torch",))
    policy = EnvironmentPolicy()
    assert order.order.environment.build_s == policy.build_s
    assert order.within_s > policy.build_s
    assert fleet.num_taken_gpus() == 0


def test_a_job_that_no_host_can_hold_states_that_rather_than_a_check(fleet: Fleet) -> None:
    enrol_host(fleet.units, "beta")
    beat(fleet)
    job_id = fleet.submit(program=PROGRAM, shape={"nodes": 1, "gpus_per_node": 3})
    fleet.cycle()
    assert "no host has 3 GPUs" in fleet.job(job_id).state_reason


def test_a_build_is_made_on_hosts_with_the_labels_of_the_job(fleet: Fleet) -> None:
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    for one in (fleet, other):
        beat(one)
    with fleet.units.begin(OPERATOR, node_labels.LABEL) as unit:
        node_labels.set_labels(unit, "beta", {"cpu": "arm"}, reason="it is one")
    job_id = fleet.submit(program=PROGRAM, node_labels={"required": {"cpu": ["arm"]}})
    fleet.cycle()
    assert requested(fleet, job_id).fleet.node_id == other.node_id


def test_a_build_delays_neither_checks_nor_the_builds_of_other_tenants(fleet: Fleet) -> None:
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(dispatch=DispatchPolicy(preflight_from_nodes=1)), reason="each job is checked")
        other_id = TenantId(new_id("tenant"))
        unit.session.add(Tenant(id=other_id, name="other", created_at=unit.now))
        unit.audit("tenant.create", "tenant", other_id)
    other = fleet_of(fleet.units, other_id, fleet.node_id)
    store_bundle(other.units, other.tenant, MANIFEST)
    beat(fleet)
    first, second = fleet.submit(program=PROGRAM), fleet.submit(program=PROGRAM)
    plain, others = fleet.submit(), other.submit(program=PROGRAM)
    fleet.cycle()
    with fleet.units.read() as session:
        assert set(session.scalars(select(PlacementPreflight.job_id))) == {first, plain, others}
        assert session.get(PlacementPreflight, second) is None, "one build of a tenant at a time on a host"


def _ordered(fleet: Fleet) -> tuple[PreflightOrder, ...]:
    fleet.cycle()
    return beat(fleet)


def test_the_first_part_builds_and_the_others_fetch_what_it_built(fleet: Fleet, clock: SetClock) -> None:
    first, second = two_parts(fleet)
    assert first.ask() == EnvironmentAnswer(state="build", lease_s=60)
    assert second.ask() == EnvironmentAnswer(state="wait")
    clock.advance(50)
    assert first.ask().state == "build", "a question renews the claim"
    clock.advance(50)
    assert second.ask().state == "wait"
    with pytest.raises(NoSuchBundleError):
        first.ask(built=BUILT)
    stored(fleet)
    built = EnvironmentAnswer(state="built", digest=BUILT)
    assert first.ask(built=BUILT) == built
    assert [second.ask(), second.ask()] == [built, built]
    assert build_of(fleet).state is BuildState.BUILT
    with fleet.units.read() as session:
        used = session.scalars(select(FolderJob.job_id).join(StoredFolder).where(StoredFolder.digest == BUILT)).all()
    assert sorted(used) == sorted([first.job_id, second.job_id])


def test_a_claim_that_was_not_renewed_is_lost_to_another_part(fleet: Fleet, clock: SetClock) -> None:
    first, second = two_parts(fleet)
    first.ask()
    clock.advance(61)
    assert second.ask().state == "build"
    assert first.ask().state == "wait"
    assert not first.fail("no disk", is_final=True), "the failure of a part without the claim counts for nothing"
    stored(fleet)
    assert first.ask(built=BUILT).digest == BUILT, "but what it built is as good"
    assert second.ask().state == "built"


def test_a_claim_of_a_cancelled_job_is_free_at_once(fleet: Fleet) -> None:
    first, second = two_parts(fleet)
    assert first.ask().state == "build"
    assert second.ask().state == "wait"
    fleet.cancel(first.job_id)
    assert second.ask().state == "build"


def test_a_fault_of_host_or_index_frees_the_claim(fleet: Fleet) -> None:
    first, second = two_parts(fleet)
    first.ask()
    assert first.fail("the index does not serve", is_final=False, log="tried 3 times")
    assert second.ask().state == "build"
    first.report("unable", "the index does not serve")
    assert fleet.job(first.job_id).state is JobState.QUEUED


def test_a_lock_that_cannot_be_installed_holds_each_job_that_needs_it(fleet: Fleet, clock: SetClock) -> None:
    first, second = two_parts(fleet)
    first.ask()
    words = "line 3 of the lock: torch 9.9 has no wheel"
    assert first.fail(words, is_final=True, line=3, log="error: no wheel")
    failed = EnvironmentAnswer(state="failed", words=words, line=3)
    assert [first.ask(), second.ask()] == [failed, failed]
    first.report("unfit", f"the environment: {words}")
    assert fleet.job(first.job_id).state is JobState.HELD
    assert words in fleet.job(first.job_id).state_reason
    with fleet.units.begin(fleet.tenant, jobs.READ) as unit:
        [found] = job_environments.builds_of(unit, second.job_id)
    assert (found.state, found.words, found.line, found.log) == (BuildState.FAILED, words, 3, "error: no wheel")
    assert found.node_name == "alpha"
    clock.advance(25 * 3600)
    assert build_of(fleet).state is BuildState.FAILED
    beat(second.fleet)
    fleet.cycle()
    assert requested(second.fleet, second.job_id).ask().state == "build", "an operator may have added the wheel since"


def test_a_release_lets_it_be_built_again(fleet: Fleet) -> None:
    part = begun(fleet)
    part.ask()
    part.fail("no wheel", is_final=True)
    part.report("unfit", "no wheel")
    with fleet.units.begin(fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, part.job_id, reason="the wheel is there")
    fleet.cycle()
    again = requested(fleet, part.job_id)
    assert again.part_id != part.part_id
    assert again.ask().state == "build"


def test_a_job_whose_environment_no_host_gets_takes_no_gpu(fleet: Fleet) -> None:
    part = begun(fleet)
    part.report("unable", "the package index does not serve")
    fleet.cycle()
    job = fleet.job(part.job_id)
    assert job.state is JobState.HELD
    assert "could not be made on one host: the package index does not serve" in job.state_reason
    assert fleet.num_taken_gpus() == 0


def test_no_other_part_or_host_requests_or_reports(fleet: Fleet) -> None:
    part = begun(fleet)
    other = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
    for stranger in (replace(part, fleet=other), replace(part, fence=part.fence + 1), replace(part, part_id="att_x")):
        for call in (stranger.ask, lambda: stranger.fail("no", is_final=True)):  # noqa: B023  # called at once
            with pytest.raises(StaleFenceError):
                call()
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(dispatch=DispatchPolicy(preflight_from_nodes=1)), reason="a test")
    plain_id = fleet.submit(program={"script": "train.py", "bundle": BUNDLE})
    beat(other)
    fleet.cycle()
    with pytest.raises(NotFoundError):
        requested(fleet, plain_id).ask()


def test_a_folder_that_is_not_whole_any_more_is_built_again_at_once(fleet: Fleet) -> None:
    part = begun(fleet)
    part.ask()
    stored(fleet)
    part.ask(built=BUILT)
    with fleet.units.begin(OPERATOR, collection.EXPIRE, quiet=True) as unit:
        lost = update(StoredFolder).where(StoredFolder.digest == BUILT)
        unit.session.execute(lost.values(state=FolderState.UPLOADING, completed_at=None))
    assert part.ask().state == "build"


def test_an_environment_expires_with_its_jobs_and_never_before(fleet: Fleet, clock: SetClock) -> None:
    part = begun(fleet)
    part.ask()
    stored(fleet)
    part.ask(built=BUILT)
    clock.advance(40 * 86_400)
    assert collection.expire_once(fleet.units) == 0, "the job has not ended"
    fleet.cancel(part.job_id)
    clock.advance(40 * 86_400)
    assert collection.expire_once(fleet.units) > 0
    with fleet.units.read() as session:
        assert session.scalar(select(func.count()).select_from(EnvironmentBuild)) == 0
        assert session.scalar(select(func.count()).select_from(EnvironmentJob)) == 0


def test_a_build_that_no_job_wants_is_forgotten(fleet: Fleet, clock: SetClock) -> None:
    part = begun(fleet)
    part.ask()
    part.fail("no wheel", is_final=True)
    clock.advance(29 * 86_400)
    collection.forget_builds(fleet.units)
    assert build_of(fleet).words == "no wheel"
    clock.advance(2 * 86_400)
    collection.forget_builds(fleet.units)
    with fleet.units.read() as session:
        assert session.scalars(select(EnvironmentBuild)).all() == []


def test_only_the_answered_environment_is_downloaded(fleet: Fleet, tmp_path: Any) -> None:
    (tmp_path / "key").write_text("tester secret\n")
    (tmp_path / "key").chmod(0o600)
    store = ObjectStore("https://store.example", "content", KeyFile(tmp_path / "key"), region="us-east-1")
    part = begun(fleet)
    stored(fleet)
    request = DownloadsRequest(protocol=PROTOCOL_VERSION, fence=part.fence, bundle=BUILT)

    def downloads() -> str:
        with fleet.units.begin(fleet.node_principal, bundles.DOWNLOADS, quiet=True) as unit:
            return bundles.downloads(unit, part.part_id, request, store).manifest.url

    with pytest.raises(NoSuchBundleError):
        downloads()
    part.ask(built=BUILT)
    assert f"/manifests/{BUILT}?" in downloads()


def test_only_the_part_that_builds_uploads_and_that_renews_its_claim(fleet: Fleet, clock: SetClock) -> None:
    first, second = two_parts(fleet)
    reading = reading_of(encode(Manifest(VERSION, (Entry("bin/x", Kind.FILE, 7, (digest_of(b"import"),)),))))

    def begin(part: Part) -> list[str]:
        with fleet.units.begin(part.fleet.node_principal, folder_uploads.BEGIN, quiet=True) as unit:
            found = folder_uploads.begin(
                unit, part.part_id, "environment", KEY, fence=part.fence, protocol=PROTOCOL_VERSION, manifest=reading
            )
            return [each.digest for each in found.wanted]

    def confirm(part: Part, uploaded: list[str]) -> int:
        request = FolderUploadsRequest(
            protocol=PROTOCOL_VERSION, fence=part.fence, digest=reading.digest, uploaded=tuple(uploaded)
        )
        with fleet.units.begin(part.fleet.node_principal, folder_uploads.CONFIRM, quiet=True) as unit:
            return folder_uploads.confirm(unit, part.part_id, "environment", KEY, request).num_missing

    with pytest.raises(ConflictError, match="does not build"):
        begin(first)
    first.ask()
    wanted = begin(first)
    assert len(wanted) == 2, "chunk and manifest"
    clock.advance(50)
    assert confirm(first, wanted[:1]) == 1
    clock.advance(50)
    assert second.ask().state == "wait", "an upload that continues keeps the claim"
    with pytest.raises(ConflictError, match="does not build"):
        confirm(second, wanted)
    with pytest.raises(NoSuchBundleError):
        first.ask(built=reading.digest)
    assert confirm(first, wanted[1:]) == 0
    assert first.ask(built=reading.digest).state == "built"
    assert second.ask() == EnvironmentAnswer(state="built", digest=reading.digest)


def test_each_checkpoint_has_the_environment_in_its_lineage(fleet: Fleet) -> None:
    part = begun(fleet)
    part.ask()
    stored(fleet)
    part.ask(built=BUILT)
    part.report("fit")
    fleet.cycle()
    attempt = fleet.attempts(part.job_id)[0].attempt
    claim = ClaimRequest(
        protocol=PROTOCOL_VERSION, boot_id="boot-1", fence=attempt.fence, nonce="n", capabilities=HOST_CAPABILITIES
    )
    with fleet.units.begin(fleet.node_principal, protocol.CLAIM) as unit:
        order = protocol.claim(unit, attempt.id, claim).order
    assert order is not None
    assert order.environment is not None
    assert order.environment.build_s == EnvironmentPolicy().ready_s
    running = replace(part, part_id=attempt.id, fence=attempt.fence)
    assert running.ask().digest == BUILT, "an attempt gets it as a preflight does"
    at_ms = to_ms(fleet.units.clock())
    of_it = {"type": "checkpoint", "step": 1, "generation": f"step-00000001/gen-{attempt.fence}", "status": "committed"}
    message = {**of_it, "bytes": 10, "at_unix_ms": at_ms, "manifest_sha256": "a" * 64, "lineage": None}
    line = TrainLine(at_ms=at_ms, rank=0, message=message)
    batch = TrainBatch(protocol=PROTOCOL_VERSION, fence=attempt.fence, offset=0, next_offset=9, lines=(line,))
    with fleet.units.begin(fleet.node_principal, training.RECORD, quiet=True) as unit:
        training.take(unit, attempt.id, batch)
    with fleet.units.read() as session:
        lineage = session.scalars(select(Checkpoint)).one().manifest["lineage"]
    assert (lineage["bundle"], lineage["environments"]) == (BUNDLE, [BUILT])
