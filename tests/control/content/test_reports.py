"""What hosts could not read is read by the control plane, and marked lost only where it cannot read it either."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import cast

import pytest

from api.job_views import job_view
from control.attempts.attempts import lock_job, step_job
from control.content.check import mark_missing
from control.content.reading import Pace, read_objects
from control.content.reports import Found, check_reports_once, note_report
from control.content.rows import lock_bundle
from control.content.types import ObjectName
from control.core.unit_of_work import declare_action
from control.jobs import holding, jobs
from control.jobs.lost_bundles import keep_jobs_once
from control.policy.policies import active_policy
from muster.domain.ids import JobId
from muster.domain.lifecycle.job import HoldRequested
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import JobState
from muster.domain.stored_content import ObjectKind
from muster.store.faults import ObjectGoneError, StoreSlowError
from muster.store.keys import object_key
from muster.store.objects import ObjectStore
from muster.wire.host import HOST_CAPABILITIES, PreflightReport
from tests.control.content.conftest import Tenant, manifest
from tests.control.reclaim.stage import SCHEDULER, Stage
from tests.fleet_factory import OPERATOR

FILES = {"train": b"print('hello')", "model": b"import torch", "words": b"of the data"}
CODE = manifest(**FILES)
REPORT = declare_action("test.report")
TRAIN = sha256(FILES["train"]).hexdigest()


@dataclass
class Objects:
    """A store by its contents. ``is_slow``: it answers nothing."""

    contents: dict[str, bytes] = field(default_factory=dict)
    is_slow: bool = False
    num_read: int = 0

    def read(self, key: str, most_bytes: int) -> bytes:
        self.num_read += 1
        if self.is_slow:
            raise StoreSlowError
        if key not in self.contents:
            raise ObjectGoneError
        assert len(self.contents[key]) <= most_bytes
        return self.contents[key]


@pytest.fixture
def objects(stage: Stage, tenant: Tenant) -> Objects:
    """The store with the bundle."""
    owner = stage.fleet.tenant_id
    found = Objects()
    by_digest = {sha256(content).hexdigest(): content for content in FILES.values()}
    wanted = tenant.begin(CODE).wanted
    for each in wanted:
        found.contents[object_key(owner, each.kind, each.digest)] = by_digest.get(each.digest, b"")
    tenant.confirm(CODE.digest, *(each.digest for each in wanted))
    return found


def key_of(stage: Stage, digest: str) -> str:
    return f"tenants/{stage.fleet.tenant_id}/chunks/{digest[:2]}/{digest}"


def report(stage: Stage, digest: str = TRAIN) -> Found | None:
    with stage.units.begin(OPERATOR, REPORT, quiet=True) as unit:
        folder = lock_bundle(unit, stage.fleet.tenant_id, CODE.digest)
        assert folder is not None
        return note_report(unit, folder.id, digest, stage.fleet.node_id)


def check(stage: Stage, objects: Objects) -> None:
    check_reports_once(stage.units, cast("ObjectStore", objects))


def lose_train(stage: Stage, objects: Objects) -> None:
    """Take a part of the bundle from the store, and have the control plane find that by a host's report."""
    del objects.contents[key_of(stage, TRAIN)]
    report(stage)
    check(stage, objects)


def wanted(tenant: Tenant) -> list[str]:
    return [each.digest for each in tenant.begin(CODE).wanted]


def test_a_hosts_word_alone_drops_nothing(stage: Stage, tenant: Tenant, objects: Objects) -> None:
    assert report(stage) == "reading"
    check(stage, objects)
    assert report(stage) == "whole"
    assert wanted(tenant) == []
    read = objects.num_read
    check(stage, objects)
    assert objects.num_read == read, "it is not read again and again"
    assert report(stage, "0" * 64) is None, "no object of the folder"


def test_all_that_a_folder_lost_is_wanted_after_a_report_of_one_object(
    stage: Stage, tenant: Tenant, objects: Objects
) -> None:
    model = sha256(FILES["model"]).hexdigest()
    del objects.contents[key_of(stage, TRAIN)]
    objects.contents[key_of(stage, model)] = b"import torcs"
    report(stage)
    check(stage, objects)
    assert report(stage) == "lost"
    assert wanted(tenant) == [TRAIN]
    check(stage, objects)
    assert set(wanted(tenant)) == {TRAIN, model, CODE.digest}, "the manifest of this test is not in its store"


def test_what_was_stored_again_after_it_was_read_is_not_marked(
    stage: Stage, tenant: Tenant, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading and the mark another check has marked it, and its tenant has uploaded it."""
    key, content, read = key_of(stage, TRAIN), FILES["train"], objects.read

    def read_first(key_read: str, most_bytes: int) -> bytes:
        if key_read == key and key not in objects.contents:
            mark_missing(stage.units, OPERATOR, [ObjectName(stage.fleet.tenant_id, ObjectKind.CHUNK, TRAIN, 1)])
            assert wanted(tenant) == [TRAIN]
            objects.contents[key] = content
            tenant.confirm(CODE.digest, TRAIN)
            raise ObjectGoneError
        return read(key_read, most_bytes)

    monkeypatch.setattr(objects, "read", read_first)
    del objects.contents[key]
    assert report(stage) == "reading"
    check(stage, objects)
    assert wanted(tenant) == [], "the new one is there"
    assert report(stage) == "reading", "it is read again if a host still lacks it"
    check(stage, objects)
    assert report(stage) == "whole"


def test_a_comparison_from_before_an_upload_marks_nothing_that_it_brought(
    stage: Stage, tenant: Tenant, objects: Objects
) -> None:
    del objects.contents[key_of(stage, TRAIN)]
    every = read_objects(stage.units, cast("ObjectStore", objects), Pace(1e12))
    [found] = [each for each in every if each.fault and each.name.digest == TRAIN]
    assert mark_missing(stage.units, OPERATOR, [found.name]) == 1
    objects.contents[key_of(stage, TRAIN)] = FILES["train"]
    tenant.confirm(CODE.digest, TRAIN)
    assert mark_missing(stage.units, OPERATOR, [found.name]) == 0
    assert wanted(tenant) == []


def test_while_the_store_does_not_answer_nothing_is_decided(stage: Stage, tenant: Tenant, objects: Objects) -> None:
    report(stage)
    objects.is_slow = True
    check(stage, objects)
    assert (report(stage), wanted(tenant)) == ("reading", [])
    objects.is_slow = False
    check(stage, objects)
    assert report(stage) == "whole"


def state_of(stage: Stage, job_id: JobId) -> JobState:
    keep_jobs_once(stage.units)
    return stage.fleet.job(job_id).state


def test_jobs_of_a_lost_bundle_wait_and_continue_when_it_is_whole(
    stage: Stage, tenant: Tenant, objects: Objects
) -> None:
    job_id, other = (
        stage.submit("on_demand", program=program)
        for program in ({"script": "train", "bundle": CODE.digest}, {"script": "/train"})
    )
    lose_train(stage, objects)
    assert state_of(stage, job_id) is JobState.HELD
    job = stage.fleet.job(job_id)
    assert "submit the same folder again" in job.state_reason
    assert job_view(job)["binding"] == "bundle_needed"
    [reason] = job_view(job)["reasons"]
    assert "continues by itself once that is whole again" in reason["text"]
    assert state_of(stage, other) is JobState.QUEUED
    with stage.units.begin(stage.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id, reason="try it")
    assert state_of(stage, job_id) is JobState.HELD, "it is not whole yet"
    tenant.confirm(CODE.digest, TRAIN)
    assert state_of(stage, job_id) is JobState.QUEUED
    assert job_view(stage.fleet.job(job_id))["binding"] is None


def in_preflight(stage: Stage) -> tuple[JobId, Callable[[], None]]:
    """Return a job that a host checks, and what has the host report that a part of its bundle is lost."""
    stage.set_policy(Policy(dispatch=DispatchPolicy(preflight_from_nodes=1)))
    [host] = stage.hosts
    host.beat(capabilities=HOST_CAPABILITIES)
    job_id = stage.submit("on_demand", program={"script": "train", "bundle": CODE.digest})
    stage.cycle()
    [asked] = host.beat(capabilities=HOST_CAPABILITIES).preflights

    def end() -> None:
        unfit = PreflightReport(preflight_id=asked.order.attempt_id, found="unfit", why="a part is lost")
        assert host.beat(capabilities=HOST_CAPABILITIES, checks=(unfit,)).preflights == ()

    return job_id, end


def in_attempt(stage: Stage) -> tuple[JobId, Callable[[], None]]:
    """Return a job that is placed, and what has its host report that a part of its bundle is lost."""
    program = {"script": "train", "bundle": CODE.digest}
    job_id = stage.submit("on_demand", program=program, restart={"max_restarts": 3})
    stage.cycle()
    [host] = stage.hosts
    [part] = host.beat().unclaimed
    assert host.claim(part.attempt_id, part.fence).granted

    def end() -> None:
        record: dict[str, object] = {"spawn_error": "a part is lost", "spawn_fault": "program", "lacks": "bundle"}
        assert host.report(part.attempt_id, part.fence, "exited", "cleaned", record=record) == 2

    return job_id, end


PARTS = pytest.mark.parametrize("begun", [in_preflight, in_attempt])
Begun = Callable[[Stage], tuple[JobId, Callable[[], None]]]


@PARTS
def test_a_job_that_stopped_for_a_lost_part_continues_once_that_is_stored(
    stage: Stage, tenant: Tenant, objects: Objects, begun: Begun
) -> None:
    job_id, end = begun(stage)
    lose_train(stage, objects)
    end()
    assert state_of(stage, job_id) is JobState.HELD
    job = stage.fleet.job(job_id)
    assert "a part is lost" in job.state_reason
    assert "release the job" not in job.state_reason, "no person has to"
    assert [each["token"] for each in job_view(job)["reasons"]] == ["bundle_needed"]
    tenant.confirm(CODE.digest, TRAIN)
    assert state_of(stage, job_id) is JobState.QUEUED


@PARTS
def test_a_job_that_stops_for_a_lost_part_which_is_stored_again_by_then_continues(
    stage: Stage, tenant: Tenant, objects: Objects, begun: Begun
) -> None:
    stage.clock.advance(1)
    job_id, end = begun(stage)
    lose_train(stage, objects)
    stage.clock.advance(1)
    objects.contents[key_of(stage, TRAIN)] = FILES["train"]
    tenant.confirm(CODE.digest, TRAIN)
    end()
    assert stage.fleet.job(job_id).state is JobState.HELD
    assert state_of(stage, job_id) is JobState.QUEUED


@PARTS
def test_a_job_that_stops_before_its_hosts_report_is_read_continues_by_what_is_found(
    stage: Stage, tenant: Tenant, objects: Objects, begun: Begun
) -> None:
    stage.clock.advance(1)
    job_id, end = begun(stage)
    del objects.contents[key_of(stage, TRAIN)]
    report(stage)
    end()
    assert state_of(stage, job_id) is JobState.HELD, "it would end in the same way"
    check(stage, objects)
    assert state_of(stage, job_id) is JobState.HELD, "it is lost"
    tenant.confirm(CODE.digest, TRAIN)
    assert state_of(stage, job_id) is JobState.QUEUED


@PARTS
def test_a_job_that_stops_for_another_want_is_a_persons(
    stage: Stage, tenant: Tenant, objects: Objects, begun: Begun
) -> None:
    stage.clock.advance(1)
    job_id, end = begun(stage)
    end()
    assert state_of(stage, job_id) is JobState.HELD
    assert [each["token"] for each in job_view(stage.fleet.job(job_id))["reasons"]] == ["release_needed"]


def test_a_job_that_waits_for_another_reason_stays_so(stage: Stage, tenant: Tenant, objects: Objects) -> None:
    job_id = stage.submit("on_demand", program={"script": "train", "bundle": CODE.digest})
    with stage.units.begin(SCHEDULER, REPORT) as unit:
        step_job(unit, lock_job(unit, job_id), HoldRequested("its budget is spent"), active_policy(unit.session))
    lose_train(stage, objects)
    keep_jobs_once(stage.units)
    tenant.confirm(CODE.digest, TRAIN)
    assert state_of(stage, job_id) is JobState.HELD


def test_a_job_that_a_person_holds_meanwhile_stays_so_when_its_bundle_is_whole(
    stage: Stage, tenant: Tenant, objects: Objects
) -> None:
    job_id = stage.submit("on_demand", program={"script": "train", "bundle": CODE.digest})
    lose_train(stage, objects)
    for _ in range(2):
        with stage.units.begin(stage.fleet.tenant, holding.HOLD) as unit:
            holding.hold(unit, job_id, reason="its data is replaced")
    job = stage.fleet.job(job_id)
    assert job.state_reason == "held by request: its data is replaced"
    assert job_view(job)["binding"] == "release_needed"
    tenant.confirm(CODE.digest, TRAIN)
    assert state_of(stage, job_id) is JobState.HELD
    with stage.units.begin(stage.fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, job_id)
    assert state_of(stage, job_id) is JobState.QUEUED


def test_a_pace_waits_for_the_bytes_before_and_catches_up_no_pause() -> None:
    now, waited = [0.0], list[float]()

    def move_the_clock(seconds: float) -> None:
        waited.append(seconds)
        now[0] += seconds

    pace = Pace(100.0, clock=lambda: now[0], sleep=move_the_clock)
    for _ in range(3):
        pace.take(50)
    assert waited == [0.5, 0.5]
    now[0] += 60
    for _ in range(2):
        pace.take(50)
    assert waited == [0.5, 0.5, 0.5]
