"""A commit is fetched by one part; the others, and later jobs, take its bundle like one that was uploaded."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import select, update

from control.content import check, collection
from control.content.types import ObjectName
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import environments
from control.jobs import jobs
from control.jobs.job_plans import plan_job
from control.jobs.lost_bundles import keep_jobs_once
from control.policy.policies import ACTIVATE, store_policy
from control.secrets.key_file import FileKeys
from muster.content.manifest import VERSION, Entry, Kind, Manifest, digest_of, encode
from muster.db.models import FolderJob, Job, PlacementPreflight, StoredFolder
from muster.domain.errors import NotFoundError, StaleFenceError, ValidationFailedError
from muster.domain.ids import JobId
from muster.domain.job.git_spec import GitSource
from muster.domain.job.spec import JobSpec
from muster.domain.policy.content import ContentPolicy
from muster.domain.policy.document import Policy
from muster.domain.states import JobState
from muster.domain.stored_content import FolderState, ObjectKind
from muster.wire.content import EnvironmentAnswer, EnvironmentFailure, EnvironmentRequest
from muster.wire.host import HOST_CAPABILITIES, PROTOCOL_VERSION, PartBundle, PreflightOrder, PreflightReport
from muster.wire.sealed_secrets import QuestionKey, context_of
from tests.control.conftest import SetClock
from tests.control.secrets.secret_case import key_file, set_secret
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.stored_bundles import store_bundle

from .test_environments import beat, requested

MANIFEST = encode(Manifest(VERSION, (Entry("train.py", Kind.FILE, 7, (digest_of(b"print()"),)),)))
GIT = {"url": "https://git.example.org/code.git", "commit": "0a" * 20}
PROGRAM = {"script": "train.py", "git": GIT}


@dataclass(frozen=True)
class GitPart:
    """A job and its preflight on a host."""

    fleet: Fleet
    job_id: JobId
    part_id: str
    fence: int
    order: PartBundle

    def answered(self, built: str | None = None, question: QuestionKey | None = None) -> environments.BuildAnswer:
        request = EnvironmentRequest(
            protocol=PROTOCOL_VERSION,
            fence=self.fence,
            interpreter="",
            platform="",
            built=built,
            public_key=None if question is None else question.public,
        )
        assert self.order.git is not None
        with self.fleet.units.begin(self.fleet.node_principal, environments.ASK, quiet=True) as unit:
            return environments.ask(unit, self.part_id, self.order.git.key, request)

    def ask(self, built: str | None = None) -> EnvironmentAnswer:
        return self.answered(built).answer

    def fail(self, words: str, *, is_final: bool) -> bool:
        assert self.order.git is not None
        failure = EnvironmentFailure(protocol=PROTOCOL_VERSION, fence=self.fence, words=words, is_final=is_final)
        with self.fleet.units.begin(self.fleet.node_principal, environments.FAIL, quiet=True) as unit:
            return environments.fail(unit, self.part_id, self.order.git.key, failure).accepted

    def report(self, found: str, why: str = "") -> None:
        beat(self.fleet, PreflightReport(preflight_id=self.part_id, found=found, why=why))  # type: ignore[arg-type]  # as given


@pytest.fixture
def fleet(units: UnitOfWorkFactory) -> Fleet:
    made = make_fleet(units)
    allow(made, "git.example.org")
    return made


def allow(fleet: Fleet, *hosts: str) -> None:
    with fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(content=ContentPolicy(git_hosts=hosts)), reason="repositories")


def begun(fleet: Fleet, **program: object) -> GitPart:
    beat(fleet)
    job_id = fleet.submit(program={**PROGRAM, **program})
    fleet.cycle()
    [order] = [each for each in beat(fleet) if each.order.job_id == job_id]
    return part_of(fleet, job_id, order)


def part_of(fleet: Fleet, job_id: JobId, order: PreflightOrder) -> GitPart:
    look = requested(fleet, job_id)
    assert order.order.bundle is not None
    return GitPart(look.fleet, job_id, look.part_id, look.fence, order.order.bundle)


def stored(fleet: Fleet) -> str:
    return store_bundle(fleet.units, fleet.tenant, MANIFEST)


def built(fleet: Fleet) -> tuple[GitPart, str]:
    """Return a preflight that has stored the bundle of its job, and the bundle's digest."""
    part = begun(fleet)
    part.ask()
    digest = stored(fleet)
    part.ask(built=digest)
    return part, digest


def next_preflight(fleet: Fleet, job_id: JobId) -> GitPart:
    fleet.cycle()
    [order] = beat(fleet)
    return part_of(fleet, job_id, order)


def lose(fleet: Fleet) -> None:
    """Mark the one chunk of the bundle as lost."""
    lost = ObjectName(fleet.tenant_id, ObjectKind.CHUNK, digest_of(b"print()"), 7)
    assert check.mark_missing(fleet.units, OPERATOR, [lost]) == 1


def test_a_host_without_git_is_not_requested(fleet: Fleet) -> None:
    beat(fleet, capabilities=tuple(each for each in HOST_CAPABILITIES if each != "git"))
    job_id = fleet.submit(program=PROGRAM)
    fleet.cycle()
    with fleet.units.read() as session:
        assert session.get(PlacementPreflight, job_id) is None
    assert fleet.attempts(job_id) == []
    assert "has git and makes nothing else" in fleet.job(job_id).state_reason


def test_the_order_of_the_preflight_names_what_to_fetch(fleet: Fleet) -> None:
    part = begun(fleet)
    git, policy = part.order.git, Policy()
    assert git is not None
    assert (part.order.digest, git.key) == ("", GitSource.model_validate(GIT).key)
    assert (git.url, git.commit, git.secret) == (GIT["url"], GIT["commit"], None)
    assert (git.max_bytes, git.max_files) == (policy.content.bundle_bytes, policy.content.bundle_files)
    assert fleet.num_taken_gpus() == 0


def test_what_was_built_is_the_bundle_of_the_job(fleet: Fleet) -> None:
    part = begun(fleet)
    assert part.ask() == EnvironmentAnswer(state="build", lease_s=60)
    digest = stored(fleet)
    assert part.ask(built=digest) == EnvironmentAnswer(state="built", digest=digest)
    part.report("fit")
    fleet.cycle()
    [found] = fleet.attempts(part.job_id)
    with fleet.units.read() as session:
        request = session.scalars(select(Job.request).where(Job.id == part.job_id)).one()
        assert session.scalars(select(FolderJob.job_id)).all() == [part.job_id]
    assert (request["bundle"], "awaits_bundle" in request) == (digest, False)
    assert found.attempt.number == 1
    later = begun(fleet)
    assert later.ask() == EnvironmentAnswer(state="built", digest=digest), "of a job after it too"


def test_no_gpu_is_given_to_a_job_whose_bundle_is_not_there(fleet: Fleet) -> None:
    part = begun(fleet)
    part.report("fit")  # by mistake: nothing was made
    for _ in range(3):
        fleet.cycle()
    assert fleet.attempts(part.job_id) == []


def test_a_claim_that_was_not_renewed_is_free(fleet: Fleet, clock: SetClock) -> None:
    part = begun(fleet)
    part.ask()
    part.report("unable", "it was killed")
    beat(fleet)
    clock.advance(61)
    second = begun(fleet)
    assert second.ask().state == "build"
    assert not part.fleet.job(part.job_id).finished_at


def test_a_fault_is_the_answer_to_each_part_and_a_later_job_tries_again(fleet: Fleet, clock: SetClock) -> None:
    part = begun(fleet)
    part.ask()
    assert part.fail("there is no such commit", is_final=True)
    assert part.ask() == EnvironmentAnswer(state="failed", words="there is no such commit")
    part.report("unfit", "the bundle: there is no such commit")
    assert fleet.job(part.job_id).state is JobState.HELD
    clock.advance(1)
    assert begun(fleet).ask().state == "build"


def test_a_released_job_whose_bundle_was_damaged_has_it_made_again(fleet: Fleet, clock: SetClock) -> None:
    part, _ = built(fleet)
    part.report("unfit", "the content store lacks a chunk")
    damage(fleet)
    with fleet.units.begin(fleet.tenant, jobs.RELEASE) as unit:
        jobs.release(unit, part.job_id)
    keep_jobs_once(fleet.units)
    assert fleet.job(part.job_id).state is JobState.QUEUED
    clock.advance(61)
    beat(fleet)
    assert next_preflight(fleet, part.job_id).ask().state == "build"


def test_a_bundle_that_is_lost_while_a_preflight_fetches_it_is_made_again_by_another_one_at_once(fleet: Fleet) -> None:
    part, digest = built(fleet)
    lose(fleet)
    keep_jobs_once(fleet.units)
    again = next_preflight(fleet, part.job_id)
    assert again.part_id != part.part_id, "what the first one reports about the lost bundle is too late"
    with pytest.raises(StaleFenceError):
        part.ask()
    part.report("unfit", "the content store lacks a part of the bundle")
    assert fleet.job(part.job_id).state is JobState.QUEUED
    assert again.ask().state == "build"
    assert stored(fleet) == digest
    assert again.ask(built=digest).state == "built"
    again.report("fit")
    fleet.cycle()
    assert fleet.job(part.job_id).state is JobState.ACTIVE


def test_a_bundle_that_the_store_lost_is_made_again_by_itself(fleet: Fleet, clock: SetClock) -> None:
    part, digest = built(fleet)
    lose(fleet)
    keep_jobs_once(fleet.units)
    for _ in range(2):
        keep_jobs_once(fleet.units)
        assert fleet.job(part.job_id).state is JobState.QUEUED
    clock.advance(61)
    beat(fleet)
    again = next_preflight(fleet, part.job_id)
    assert again.ask().state == "build"
    assert stored(fleet) == digest
    assert again.ask(built=digest).state == "built"
    keep_jobs_once(fleet.units)
    assert fleet.job(part.job_id).state is JobState.QUEUED


def damage(fleet: Fleet) -> None:
    with fleet.units.begin(OPERATOR, collection.EXPIRE, quiet=True) as unit:
        damaged = update(StoredFolder).values(state=FolderState.UPLOADING, completed_at=None)
        unit.session.execute(damaged.execution_options(synchronize_session=False))


def test_a_key_of_another_commit_is_none_of_this_job(fleet: Fleet) -> None:
    part = begun(fleet)
    request = EnvironmentRequest(protocol=PROTOCOL_VERSION, fence=part.fence, interpreter="", platform="")
    other = GitSource(url=GIT["url"], commit="0b" * 20).key
    with pytest.raises(NotFoundError), fleet.units.begin(fleet.node_principal, environments.ASK, quiet=True) as unit:
        environments.ask(unit, part.part_id, other, request)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ((), "`content.git_hosts` of the policy is empty. Ask the operator"),
        (("github.com",), "on no host that the operator allows by `content.git_hosts` of the policy: github.com"),
    ],
)
def test_a_host_that_the_operator_does_not_name_is_refused(fleet: Fleet, hosts: tuple[str, ...], words: str) -> None:
    allow(fleet, *hosts)
    with pytest.raises(ValidationFailedError) as refused:
        fleet.submit(program=PROGRAM)
    [fault] = refused.value.faults
    assert (fault.pointer, fault.code) == ("/program/git/url", "git_host_not_allowed")
    assert words in fault.detail


def test_a_host_that_is_named_no_more_is_not_reached(fleet: Fleet) -> None:
    part = begun(fleet)
    allow(fleet)
    answer = part.ask()
    assert answer.state == "failed"
    assert "`content.git_hosts` of the policy is empty" in answer.words


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    return key_file(tmp_path / "keys", "k1")


def test_only_the_part_that_fetches_gets_the_secret(fleet: Fleet, keys: FileKeys) -> None:
    set_secret(fleet.units, keys, fleet.tenant_id, "deploy", b"t0ken")
    part = begun(fleet, git={**GIT, "secret": "deploy"})
    question = QuestionKey()
    answer = part.answered(question=question).sealed(lambda: keys)
    context = context_of(fleet.node_id, part.part_id, part.fence)
    assert question.opened(answer.public_key, answer.sealed, context) == {"deploy": b"t0ken"}
    assert part.answered().secret is None, "not with the renewal of a claim"
    digest = stored(fleet)
    part.ask(built=digest)
    assert part.answered(question=question).secret is None, "not once it is there"
    with fleet.units.begin(fleet.tenant, jobs.READ) as unit:
        spec = unit.session.scalars(select(Job.spec).where(Job.id == part.job_id)).one()
    assert spec["secrets"] == [], "the program does not get it"


def test_a_commit_is_refused_where_no_content_store_keeps_its_bundle(fleet: Fleet) -> None:
    spec = JobSpec.model_validate({"name": "job", "program": PROGRAM}, strict=False)
    for tried in (jobs.submit, plan_job):
        with (
            pytest.raises(ValidationFailedError, match="no content store is configured") as refused,
            fleet.units.begin(fleet.tenant, jobs.SUBMIT, quiet=True) as unit,
        ):
            tried(unit, spec, store=None)
        [fault] = refused.value.faults
        assert (fault.pointer, fault.code) == ("/program/git", "no_content_store")


@pytest.mark.parametrize(
    ("limited", "code", "words"),
    [
        (("other",), "not_for_this_job", "deploy is only for jobs named other"),
        (None, "no_such_secret", "there is no secret deploy; the tenant has none. Set it: muster secret set deploy"),
    ],
)
def test_a_secret_that_the_job_may_not_use_is_refused(
    fleet: Fleet, keys: FileKeys, limited: tuple[str, ...] | None, code: str, words: str
) -> None:
    if limited is not None:
        set_secret(fleet.units, keys, fleet.tenant_id, "deploy", b"t0ken", *limited)
    with pytest.raises(ValidationFailedError) as refused:
        fleet.submit(program={**PROGRAM, "git": {**GIT, "secret": "deploy"}})
    [fault] = refused.value.faults
    assert (fault.pointer, fault.code) == ("/program/git/secret", code)
    assert words in fault.detail
