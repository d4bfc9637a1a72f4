"""Outputs of a job, to read: which there are, their files, and permissions to read those from the content store."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Final, TypeVarTuple

from sqlalchemy import ColumnElement, Select, func, select

from control.content.outputs import FINAL
from control.content.rows import has_chunks
from control.content.types import StoredFolderRecord
from control.core.paging import Part, Sort, SortKey, number_in
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.jobs.read import row_of
from muster.db.models import Attempt, Checkpoint, FolderFile, JobOutput, StoredFolder
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import AttemptId, CheckpointId, JobId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import CheckpointStatus
from muster.domain.stored_content import FolderState

READ: Final = declare_action("outputs.read")
Columns = TypeVarTuple("Columns")


@dataclass(frozen=True, slots=True)
class OutputsFilter:
    """Which outputs are meant. ``attempt``: its number. ``step``: ``final`` for the end; None: any."""

    attempt: int | None = None
    step: str | None = None
    node_rank: int | None = None


@dataclass(frozen=True, slots=True)
class OfCheckpoint:
    """The checkpoint with which outputs were collected. ``sha256``: of its manifest; None: none was reported."""

    id: CheckpointId
    generation: str
    status: CheckpointStatus
    sha256: str | None


@dataclass(frozen=True, slots=True)
class OutputsFound:
    """The outputs of one host's part of an attempt. ``step`` None: at its end.

    ``checkpoint``: None also where none was reported, or its step was saved again.
    """

    id: int
    attempt_id: AttemptId
    attempt: int
    node_rank: int
    step: int | None
    folder: StoredFolderRecord
    created_at: datetime
    checkpoint: OfCheckpoint | None


@dataclass(frozen=True, slots=True)
class FileFound:
    """A file of a job's outputs. ``output``: the id of these; ``number``: of the file in their manifest."""

    output: int
    number: int
    path: str
    num_bytes: int
    attempt: int
    node_rank: int
    step: int | None


@dataclass(frozen=True, slots=True)
class Readable:
    """What a caller may read now, as the read is in the audit: a folder of a tenant by its manifest's digest."""

    tenant_id: TenantId
    digest: str


NEWEST: Final = Sort((SortKey(JobOutput.id, attrgetter("id"), number_in),), is_descending=True)
"""The order of outputs."""
BY_PATH: Final = Sort(
    (
        SortKey(JobOutput.id, attrgetter("output"), number_in),
        SortKey(FolderFile.number, attrgetter("number"), number_in),
    )
)
"""The order of files: by outputs, the oldest first, then by path."""


def outputs_of(unit: UnitOfWork, job_id: JobId, wanted: OutputsFilter, part: Part) -> list[OutputsFound]:
    """Return outputs of a visible job, the newest first."""
    row_of(unit, job_id)
    query = _joined(select(JobOutput, Attempt.number, StoredFolder, Checkpoint), job_id, wanted)
    return [_found(*row) for row in unit.session.execute(part.of(query, NEWEST))]


def files_of(
    unit: UnitOfWork, job_id: JobId, wanted: OutputsFilter, part: Part, *, prefix: str = ""
) -> list[FileFound]:
    """Return files of a visible job's complete outputs: by outputs, the oldest first, then by path."""
    row_of(unit, job_id)
    columns = select(
        JobOutput.id,
        FolderFile.number,
        FolderFile.path,
        FolderFile.num_bytes,
        Attempt.number,
        JobOutput.node_rank,
        JobOutput.step,
    )
    query = _joined(columns, job_id, wanted).join(FolderFile, FolderFile.folder_id == JobOutput.folder_id)
    query = query.where(StoredFolder.state == FolderState.COMPLETE)
    if prefix:
        query = query.where(func.starts_with(FolderFile.path, prefix))
    return [FileFound(*row) for row in unit.session.execute(part.of(query, BY_PATH))]


def read_file(unit: UnitOfWork, job_id: JobId, path: str, wanted: OutputsFilter) -> Readable:
    """Return the folder that has the file, and audit the read.

    Of several: of the newest attempt, of its end before that of steps, of the newest step, of the first host.
    Raises NotFoundError: no complete outputs of a visible job have the file.
    """
    unit.principal.require(Permission.LOG_READ)
    job = row_of(unit, job_id)
    query = select(JobOutput, Attempt.number, StoredFolder, Checkpoint)
    query = _joined(query, job_id, wanted).join(FolderFile, FolderFile.folder_id == JobOutput.folder_id)
    query = query.where(StoredFolder.state == FolderState.COMPLETE, FolderFile.path == path).order_by(
        Attempt.number.desc(), JobOutput.step.desc().nulls_first(), JobOutput.node_rank
    )
    row = unit.session.execute(query.limit(1)).one_or_none()
    if row is None:
        raise NotFoundError("the job's outputs have no such file")
    found = _found(*row)
    _audit(unit, job_id, TenantId(job.tenant_id), found, {"path": path})
    return Readable(TenantId(job.tenant_id), found.folder.digest)


def read_chunks(unit: UnitOfWork, job_id: JobId, output: int, chunks: Sequence[str]) -> Readable:
    """Return the folder of the outputs, which has all ``chunks``, and audit the read.

    Raises:
        NotFoundError: the visible job has no such outputs, or they have no such chunk.
        ConflictError: they are not complete.
    """
    unit.principal.require(Permission.LOG_READ)
    job = row_of(unit, job_id)
    query = _joined(select(JobOutput, Attempt.number, StoredFolder, Checkpoint), job_id, OutputsFilter())
    row = unit.session.execute(query.where(JobOutput.id == output)).one_or_none()
    if row is None:
        raise NotFoundError("the job has no such outputs")
    found = _found(*row)
    if found.folder.state is not FolderState.COMPLETE:
        raise ConflictError("the host has not uploaded these outputs yet", suggestion="Try again later.")
    if not has_chunks(unit, found.folder.id, chunks):
        raise NotFoundError("these outputs have no such chunk")
    _audit(unit, job_id, TenantId(job.tenant_id), found, {"num_chunks": len(chunks)})
    return Readable(TenantId(job.tenant_id), found.folder.digest)


def _audit(unit: UnitOfWork, job_id: JobId, tenant_id: TenantId, found: OutputsFound, more: dict[str, object]) -> None:
    detail = {"attempt": found.attempt, "node_rank": found.node_rank, "step": found.step, **more}
    unit.audit("outputs.read", "job", job_id, tenant_id=tenant_id, detail=detail)


def _joined(query: Select[*Columns], job_id: JobId, wanted: OutputsFilter) -> Select[*Columns]:
    joined = query.join(Attempt, Attempt.id == JobOutput.attempt_id)
    joined = joined.join(StoredFolder, StoredFolder.id == JobOutput.folder_id)
    joined = joined.outerjoin(Checkpoint, Checkpoint.id == JobOutput.checkpoint_id)
    return joined.where(JobOutput.job_id == job_id, *_conditions(wanted))


def _conditions(wanted: OutputsFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.attempt is not None:
        found.append(Attempt.number == wanted.attempt)
    if wanted.node_rank is not None:
        found.append(JobOutput.node_rank == wanted.node_rank)
    if wanted.step is not None:
        step = None if wanted.step == FINAL else int(wanted.step)
        found.append(JobOutput.step.is_not_distinct_from(step))
    return found


def _found(output: JobOutput, attempt: int, folder: StoredFolder, saved: Checkpoint | None) -> OutputsFound:
    checkpoint = None
    if saved is not None:
        checkpoint = OfCheckpoint(saved.id, saved.generation, saved.status, saved.manifest.get("sha256") or None)
    return OutputsFound(
        id=output.id,
        attempt_id=output.attempt_id,
        attempt=attempt,
        node_rank=output.node_rank,
        step=output.step,
        folder=record_of(folder, StoredFolderRecord),
        created_at=output.created_at,
        checkpoint=checkpoint,
    )
