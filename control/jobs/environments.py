"""Environments of a job: what its hosts asked for, where each build is, and the log of a failed one."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select, update

from control.attempts.git_bundles import await_damaged_again
from control.core.unit_of_work import UnitOfWork
from control.jobs.read import row_of
from muster.db.models import EnvironmentBuild, EnvironmentJob, Job, Node, StoredFolder
from muster.domain.ids import JobId
from muster.domain.job.environment_builds import BuildState


@dataclass(frozen=True, slots=True)
class BuildFound:
    """A build that a job asked for. ``node_name``: of the host that builds or built it last. Of the newest failure:
    ``words``, ``line`` and ``log``. ``source``: the commit, if it is a bundle's.
    """

    key: str
    state: BuildState
    interpreter: str
    platform: str
    node_name: str | None
    changed_at: datetime
    digest: str | None
    num_bytes: int | None
    words: str
    line: int | None
    log: str
    source: str | None = None


def builds_of(unit: UnitOfWork, job_id: JobId) -> list[BuildFound]:
    """Return the builds that a visible job asked for, the newest first.

    Raises NotFoundError for a missing job and for another tenant's alike.
    """
    job = row_of(unit, job_id)
    query = (
        select(EnvironmentBuild, Node.name, StoredFolder.digest, StoredFolder.num_bytes)
        .join(EnvironmentJob, EnvironmentJob.build_id == EnvironmentBuild.id)
        .outerjoin(Node, Node.id == EnvironmentBuild.node_id)
        .outerjoin(StoredFolder, StoredFolder.id == EnvironmentBuild.folder_id)
        .where(EnvironmentJob.job_id == job.id)
        .order_by(EnvironmentBuild.changed_at.desc(), EnvironmentBuild.id.desc())
    )
    return [
        BuildFound(
            key=build.key,
            state=build.state,
            interpreter=build.interpreter,
            platform=build.platform,
            node_name=node_name,
            changed_at=build.changed_at,
            digest=digest,
            num_bytes=num_bytes,
            words=build.words,
            line=build.line,
            log=build.log,
            source=build.source,
        )
        for build, node_name, digest, num_bytes in unit.session.execute(query)
    ]


def allow_builds_again(unit: UnitOfWork, job: Job) -> None:
    """Let the failed builds of a job be tried again: a release states that the cause no longer exists."""
    asked = select(EnvironmentJob.build_id).where(EnvironmentJob.job_id == job.id)
    await_damaged_again(unit, job)
    statement = (
        update(EnvironmentBuild)
        .where(EnvironmentBuild.id.in_(asked), EnvironmentBuild.state == BuildState.FAILED)
        .values(state=BuildState.WAITING, changed_at=unit.now)
    )
    unit.session.execute(statement.execution_options(synchronize_session=False))
