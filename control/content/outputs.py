"""Outputs of jobs: which folder each host's part of an attempt left at its end, and at its checkpoints."""

import re
from dataclasses import dataclass
from typing import Final

from msgspec.structs import asdict
from sqlalchemy import Select, select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Checkpoint, JobOutput, StoredFolder
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.ids import AttemptId, JobId
from muster.domain.stored_content import FolderState
from muster.wire.training import Lineage

FINAL: Final = "final"
OUTPUTS_NOTICE: Final = "job.outputs_noted"
"""Kind of the event of what a host could not collect."""
_OF_A_STEP: Final = re.compile(r"step-(0|[1-9][0-9]{0,15})")


@dataclass(frozen=True, slots=True)
class OutputsPlace:
    """Whose outputs they are. ``step``: of the checkpoint; None: of the end."""

    job_id: JobId
    attempt_id: AttemptId
    node_rank: int
    step: int | None

    @property
    def words(self) -> str:
        when = "the end" if self.step is None else f"step {self.step}"
        return f"the outputs of {self.attempt_id} at {when}, host {self.node_rank}"


def step_of(name: str) -> int | None:
    """Return the step that outputs are of; None: of the end. Raises NotFoundError: nothing has such a name."""
    if name == FINAL:
        return None
    found = _OF_A_STEP.fullmatch(name)
    if found is None:
        raise NotFoundError(f"outputs are `{FINAL}`, or `step-N` of a checkpoint")
    return int(found[1])


def name_outputs(unit: UnitOfWork, place: OutputsPlace, folder: StoredFolder) -> None:
    """Store that ``folder`` has these outputs; the tenant's row of content is locked.

    Another manifest takes the place of one whose upload was broken off. Raises ConflictError: that one is complete.
    """
    row = _row_of(unit, place)
    if row is None:
        unit.session.add(
            JobOutput(
                job_id=place.job_id,
                attempt_id=place.attempt_id,
                node_rank=place.node_rank,
                step=place.step,
                folder_id=folder.id,
                created_at=unit.now,
                checkpoint_id=unit.session.scalar(_checkpoint_of(place).with_only_columns(Checkpoint.id)),
            )
        )
    elif row.folder_id != folder.id:
        if unit.session.get_one(StoredFolder, row.folder_id).state is FolderState.COMPLETE:
            raise ConflictError(f"{place.words} are stored already", suggestion="Nothing is left to be uploaded.")
        row.folder_id = folder.id


def require_named(unit: UnitOfWork, place: OutputsPlace, digest: str) -> None:
    """Raise ConflictError unless the folder of this digest has these outputs."""
    row = _row_of(unit, place)
    if row is None or unit.session.get_one(StoredFolder, row.folder_id).digest != digest:
        message = f"{place.words} are not the folder {digest[:12]}…"
        raise ConflictError(message, suggestion="Begin the upload again with its manifest.")


def add_to_lineage(unit: UnitOfWork, place: OutputsPlace, digest: str) -> None:
    """Store in the lineage of the checkpoint that complete outputs were collected with it."""
    if place.step is None:
        return
    query = _checkpoint_of(place).with_for_update(key_share=True)
    row = unit.session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        return
    lineage = row.manifest.get("lineage") or asdict(Lineage())
    known = lineage.get("outputs") or []
    if digest not in known:
        row.manifest = {**row.manifest, "lineage": {**lineage, "outputs": [*known, digest]}}


def _checkpoint_of(place: OutputsPlace) -> Select[Checkpoint]:
    """Return the query for the checkpoint with which outputs were collected; it finds none for an end."""
    return select(Checkpoint).where(Checkpoint.attempt_id == place.attempt_id, Checkpoint.step == place.step)


def _row_of(unit: UnitOfWork, place: OutputsPlace) -> JobOutput | None:
    query = select(JobOutput).where(
        JobOutput.attempt_id == place.attempt_id,
        JobOutput.node_rank == place.node_rank,
        JobOutput.step.is_not_distinct_from(place.step),
    )
    return unit.session.scalars(query).one_or_none()
