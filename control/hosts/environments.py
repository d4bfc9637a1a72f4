"""Environments of hosts, and bundles of git commits: which part builds one, and where the others get it.

One tenant's jobs with the same key share a build. The part that asks first has the claim, and renews it as it builds.
What it built is a stored folder. A lock that cannot be installed, or a commit that cannot be fetched, is remembered, so
that no further host tries it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from control.attempts.attempts import lock_job
from control.attempts.git_bundles import git_of, refusal_of, take_bundle
from control.attempts.mapping import job_request
from control.content.uses import pin_folder
from control.core.unit_of_work import UnitOfWork, declare_action
from control.hosts.parts import is_open, job_of_part
from control.hosts.protocol import node_of
from control.hosts.secret_delivery import Delivery, read_deploy_secret
from control.policy.policies import active_policy
from control.secrets.key_wrapping import KeyWrapper
from muster.db.models import EnvironmentBuild, EnvironmentJob, Job, StoredFolder
from muster.domain.errors import ConflictError, NoSuchBundleError, NotFoundError, StaleFenceError
from muster.domain.ids import NodeId, TenantId
from muster.domain.job.environment_builds import BuildState
from muster.domain.job.git_spec import GitSource
from muster.domain.job.request import ENVIRONMENT
from muster.domain.stored_content import FolderKind, FolderState
from muster.wire.content import (
    EnvironmentAnswer,
    EnvironmentFailure,
    EnvironmentFailureAnswer,
    EnvironmentRequest,
)

ASK: Final = declare_action("host.environment")
FAIL: Final = declare_action("host.environment_failed")


@dataclass(frozen=True, slots=True)
class BuildAnswer:
    """An answer, and the secret that is sealed into it after the commit."""

    answer: EnvironmentAnswer
    secret: Delivery | None = None

    def sealed(self, keys: Callable[[], KeyWrapper]) -> EnvironmentAnswer:
        """Return the answer with its secret. Raises ``SecretKeyError``."""
        if self.secret is None:
            return self.answer
        found = self.secret.sealed(keys())
        return msgspec.structs.replace(self.answer, public_key=found.public_key, sealed=found.sealed)


def ask(unit: UnitOfWork, part_id: str, key: str, request: EnvironmentRequest) -> BuildAnswer:
    """Return how the host gets the environment, or the bundle. Begin the unit ``quiet``: a renewed claim has no trace.

    Raises:
        StaleFenceError: the node has no such part now, or with another fence.
        NotFoundError: the part's job has no environment, and no commit of this key.
        NoSuchBundleError: ``built`` names a folder that is not stored whole.
    """
    node_id = node_of(unit, request.protocol)
    job = job_of_part(unit, part_id, request.fence, node_id)
    git = _git_of_key(unit, job, key)
    if git is not None:
        lock_job(unit, job.id)  # before the folder: its request will name that
    kind = FolderKind.ENVIRONMENT if git is None else FolderKind.BUNDLE
    folder = _folder_of(unit, job, key, kind, request.built)
    if folder is None and request.built is not None:
        raise NoSuchBundleError
    build = _lock_build(unit, job, key, request, git)
    _note_job(unit, job, build)
    if folder is not None and (request.built is not None or build.folder_id == folder.id):
        if build.state is not BuildState.BUILT:
            _complete(unit, job, build, folder, part_id, node_id)
        if git is None:
            pin_folder(unit, job.id, folder)
        else:
            take_bundle(unit, job, folder)
        return BuildAnswer(EnvironmentAnswer(state="built", digest=folder.digest))
    return _claimed(unit, job, build, git, request, (part_id, node_id))


def _git_of_key(unit: UnitOfWork, job: Job, key: str) -> GitSource | None:
    """Return the job's commit if the key is its own; None: the key is of an environment.

    Raises NotFoundError: the job has neither.
    """
    git = git_of(unit, job)
    if git is not None and git.key == key:
        return git
    if ENVIRONMENT not in job_request(job).capabilities:
        raise NotFoundError
    return None


def _claimed(
    unit: UnitOfWork,
    job: Job,
    build: EnvironmentBuild,
    git: GitSource | None,
    request: EnvironmentRequest,
    claimant: tuple[str, NodeId],
) -> BuildAnswer:
    """Return the answer about what is not there, with the claim and the secret if no other part has it."""
    if git is not None and (why := refusal_of(git, active_policy(unit.session))) is not None:
        return BuildAnswer(EnvironmentAnswer(state="failed", words=f"the repository {why}"))
    answer = _claim(unit, job, build, *claimant)
    if git is None or git.secret is None or answer.state != "build" or request.public_key is None:
        return BuildAnswer(answer)
    part = (claimant[0], request.fence)
    return BuildAnswer(answer, read_deploy_secret(unit, job, git.secret, claimant[1], part, request.public_key))


def fail(unit: UnitOfWork, part_id: str, key: str, failure: EnvironmentFailure) -> EnvironmentFailureAnswer:
    """Note that a build failed: permanently, or so that another part may build it.

    Raises StaleFenceError: the node has no such part now, or with another fence.
    """
    node_id = node_of(unit, failure.protocol)
    job = job_of_part(unit, part_id, failure.fence, node_id)
    build = _build_of(unit, job.tenant_id, key)
    if build is None or build.state is not BuildState.BUILDING or build.part_id != part_id:
        return EnvironmentFailureAnswer(accepted=False)
    build.state = BuildState.FAILED if failure.is_final else BuildState.WAITING
    build.lease_until, build.changed_at = None, unit.now
    build.words, build.line, build.log = failure.words, failure.line, failure.log
    told = {"node_id": node_id, "is_final": failure.is_final, "line": failure.line}
    _report(unit, job, build, "failed", {**told, "reason": failure.words})
    return EnvironmentFailureAnswer(accepted=True)


class BuildPlace:
    """The place of the folder that a part uploads as the environment, or as the bundle, of a key."""

    def __init__(self, unit: UnitOfWork, part_id: str, fence: int, node_id: NodeId, key: str) -> None:
        """Find the part's job. Raises StaleFenceError: the node has no such part now."""
        self.tenant_id = TenantId(job_of_part(unit, part_id, fence, node_id).tenant_id)
        self._claimant, self._key = (part_id, node_id), key

    def begun(self, unit: UnitOfWork, folder: StoredFolder) -> None:
        del folder
        self._renew(unit)

    def check(self, unit: UnitOfWork, digest: str) -> None:
        del digest  # whatever the part that builds has uploaded is what it built, once it names the folder
        self._renew(unit)

    def completed(self, unit: UnitOfWork, folder: StoredFolder) -> None:
        """Do nothing: the part names the folder when it asks again."""

    def _renew(self, unit: UnitOfWork) -> None:
        """Renew the claim. Raises ConflictError: the part has none."""
        build = _build_of(unit, self.tenant_id, self._key)
        if build is None or build.lease_until is None or (build.part_id, build.node_id) != self._claimant:
            raise ConflictError("this part does not build that", suggestion="Ask for it by its key.")
        build.lease_until = unit.now + timedelta(seconds=active_policy(unit.session).environment.lease_s)


def _build_of(unit: UnitOfWork, tenant_id: TenantId, key: str) -> EnvironmentBuild | None:
    """Return the row of the key, locked."""
    query = select(EnvironmentBuild).where(EnvironmentBuild.tenant_id == tenant_id, EnvironmentBuild.key == key)
    query = query.with_for_update().execution_options(populate_existing=True)
    return unit.session.scalars(query).one_or_none()


def _folder_of(unit: UnitOfWork, job: Job, key: str, kind: FolderKind, built: str | None) -> StoredFolder | None:
    """Return the whole folder that was just built, or that of the key's build, locked so that it does not expire.

    Folders are locked before builds, in the order in which an expiry does it.
    """
    is_meant = StoredFolder.digest == built
    if built is None:
        ids = select(EnvironmentBuild.folder_id)
        is_meant = StoredFolder.id.in_(
            ids.where(EnvironmentBuild.tenant_id == job.tenant_id, EnvironmentBuild.key == key)
        )
    query = select(StoredFolder).where(
        StoredFolder.tenant_id == job.tenant_id,
        StoredFolder.kind == kind,
        StoredFolder.state == FolderState.COMPLETE,
        is_meant,
    )
    return unit.session.scalars(query.with_for_update(key_share=True)).one_or_none()


def _lock_build(
    unit: UnitOfWork, job: Job, key: str, request: EnvironmentRequest, git: GitSource | None
) -> EnvironmentBuild:
    """Return the row of the key, locked."""
    row = {
        "tenant_id": job.tenant_id,
        "key": key,
        "interpreter": request.interpreter,
        "platform": request.platform,
        "state": BuildState.WAITING,
        "created_at": unit.now,
        "changed_at": unit.now,
        "words": "",
        "log": "",
        "source": None if git is None else f"{git.url} {git.commit}",
    }
    unit.session.execute(insert(EnvironmentBuild).values(row).on_conflict_do_nothing())
    build = _build_of(unit, job.tenant_id, key)
    if build is None:
        raise StaleFenceError  # it was forgotten in this moment, after no job had asked for it in a month
    return build


def _note_job(unit: UnitOfWork, job: Job, build: EnvironmentBuild) -> None:
    row = {"job_id": job.id, "build_id": build.id}
    unit.session.execute(insert(EnvironmentJob).values(row).on_conflict_do_nothing())


def _complete(
    unit: UnitOfWork, job: Job, build: EnvironmentBuild, folder: StoredFolder, part_id: str, node_id: NodeId
) -> None:
    build.state, build.folder_id, build.lease_until = BuildState.BUILT, folder.id, None
    build.part_id, build.node_id, build.changed_at = part_id, node_id, unit.now
    build.words, build.line, build.log = "", None, ""
    told = {"node_id": node_id, "digest": folder.digest, "num_bytes": folder.num_bytes}
    _report(unit, job, build, "built", told)


def _claim(unit: UnitOfWork, job: Job, build: EnvironmentBuild, part_id: str, node_id: NodeId) -> EnvironmentAnswer:
    """Return the answer about an environment that is not there, with the claim if no other part has it."""
    policy = active_policy(unit.session).environment
    is_new_failure = build.changed_at > unit.now - timedelta(hours=policy.failed_hours)
    if build.source is not None:  # a repository or its secret may have changed before a later submission
        is_new_failure &= job.created_at <= build.changed_at
    if build.state is BuildState.FAILED and is_new_failure:
        return EnvironmentAnswer(state="failed", words=build.words, line=build.line)
    is_own = build.part_id == part_id and build.node_id == node_id
    is_claimed = not is_own and _is_claimed(unit, build)
    # It was completed while this one waited for the row. The host finds it when it asks again.
    is_just_built = build.changed_at > unit.now - timedelta(seconds=policy.lease_s) and _is_stored(unit, build)
    if is_claimed or is_just_built:
        return EnvironmentAnswer(state="wait")
    if build.state is not BuildState.BUILDING or not is_own:
        build.changed_at = unit.now
        _report(unit, job, build, "building", {"node_id": node_id})
    build.state, build.folder_id, build.part_id, build.node_id = BuildState.BUILDING, None, part_id, node_id
    build.lease_until = unit.now + timedelta(seconds=policy.lease_s)
    return EnvironmentAnswer(state="build", lease_s=policy.lease_s)


def _report(unit: UnitOfWork, job: Job, build: EnvironmentBuild, what: str, payload: dict[str, object]) -> None:
    noun, about = ("environment", {}) if build.source is None else ("bundle", {"source": build.source})
    told = {"key": build.key, **about, **payload}
    unit.emit(f"job.{noun}_{what}", "job", job.id, tenant_id=job.tenant_id, payload=told)


def _is_claimed(unit: UnitOfWork, build: EnvironmentBuild) -> bool:
    """Return whether the part that has the build is within its lease, and may still run: its job may be cancelled."""
    if build.lease_until is None or build.lease_until <= unit.now or build.part_id is None or build.node_id is None:
        return False
    return is_open(unit, build.part_id, NodeId(build.node_id))


def _is_stored(unit: UnitOfWork, build: EnvironmentBuild) -> bool:
    """Return whether the store has all of what was built, as far as is known."""
    query = select(StoredFolder.state).where(StoredFolder.id == build.folder_id)
    return build.state is BuildState.BUILT and unit.session.scalar(query) is FolderState.COMPLETE
