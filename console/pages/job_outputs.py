"""Outputs, files and checkpoints of a job: what its hosts collected, and links by which it is read from the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from api.dependencies import dependencies_of
from api.reading import reading, require_id
from api.v1.checkpoint_files import signed_archive
from api.v1.outputs import signed_file
from console.paging import page_of, place_in
from console.rendering import pages_of
from console.session import Viewer, sees
from control.content.outputs import FINAL
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.jobs import output_hosts, outputs, read
from control.jobs.output_hosts import HostOutputs
from control.jobs.outputs import FileFound, OutputsFilter, OutputsFound
from muster.domain.ids import CheckpointId, JobId
from muster.domain.principals import Permission
from muster.domain.stored_content import HostOutputsState

router = APIRouter()
FILES_SHOWN: Final = 20
OUTPUTS_SHOWN: Final = 20
HOSTS_SHOWN: Final = 10
A_PAGE: Final = 100
Attempt = Annotated[int | None, Query(ge=1, lt=1 << 31)]
Step = Annotated[str | None, Query(pattern=r"^(final|0|[1-9][0-9]{0,15})$")]
NodeRank = Annotated[int | None, Query(ge=0, lt=1 << 31)]
Path = Annotated[str, Query(max_length=4096, pattern=r"^[^\x00-\x1f]*$")]


@dataclass(frozen=True, slots=True)
class OutputsShown:
    """The newest outputs of a job, and the first files of the newest one that was uploaded whole.

    ``patterns``: by which hosts collect, while nothing was collected. ``missing``: hosts of the newest attempt whose
    outputs of its end are not there, yet or any more.
    """

    outputs: Sequence[OutputsFound]
    files: Sequence[FileFound]
    patterns: Sequence[str] = ()
    missing: Sequence[HostOutputs] = ()

    @property
    def is_any_lost(self) -> bool:
        return any(each.state is HostOutputsState.LOST for each in self.missing)


NOTHING: Final = OutputsShown((), ())


def shown_of(unit: UnitOfWork, job_id: JobId) -> OutputsShown:
    """Return what the page of a job shows."""
    found = outputs.outputs_of(unit, job_id, OutputsFilter(), Part(OUTPUTS_SHOWN))
    missing = output_hosts.missing_of(unit, job_id, HOSTS_SHOWN)
    if not found:
        return OutputsShown((), (), read.submitted(unit, job_id).spec.get("outputs") or (), missing)
    whole = next((each for each in found if each.folder.completed_at is not None), None)
    if whole is None:
        return OutputsShown(found, (), missing=missing)
    step = FINAL if whole.step is None else str(whole.step)
    wanted = OutputsFilter(whole.attempt, step, whole.node_rank)
    return OutputsShown(found, outputs.files_of(unit, job_id, wanted, Part(FILES_SHOWN)), missing=missing)


@router.get("/jobs/{job_id}/files")
def files_page(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.JOB_READ)],
    job_id: str,
    prefix: Path = "",
    cursor: Annotated[str | None, Query(max_length=8192)] = None,
) -> Response:
    """Show the files of all outputs, a page at a time. ``prefix``: with which their paths begin."""
    dependencies, found_id = dependencies_of(request), JobId(require_id("job", job_id))
    filters = {"prefix": prefix}
    part = Part(A_PAGE + 1, place_in(dependencies.secret_key, filters, cursor, length=len(outputs.BY_PATH.keys)))

    def find(unit: UnitOfWork) -> tuple[str, list[FileFound]]:
        name = read.submitted(unit, found_id).name
        found = outputs.files_of(unit, found_id, OutputsFilter(), part, prefix=prefix)
        return name, found

    name, found = reading(dependencies.units, viewer.principal, outputs.READ, find)
    page = page_of(
        dependencies.secret_key,
        filters,
        found,
        size=A_PAGE,
        path=f"/console/jobs/{found_id}/files",
        place=outputs.BY_PATH.position_of,
    )
    return pages_of(request).page(
        request, "job_files.html", viewer, place="jobs", page=page, prefix=prefix, job_id=found_id, job_name=name
    )


@router.get("/jobs/{job_id}/file")
def read_file(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.LOG_READ)],
    job_id: str,
    path: Path,
    attempt: Attempt = None,
    step: Step = None,
    node_rank: NodeRank = None,
) -> Response:
    """Redirect to the file in the content store by a link that is signed now. The read is audited."""
    found_id, wanted = JobId(require_id("job", job_id)), OutputsFilter(attempt, step, node_rank)
    url = signed_file(dependencies_of(request), viewer.principal, found_id, path, wanted)
    return RedirectResponse(url, status_code=303, headers={"Cache-Control": "no-store"})


@router.get("/jobs/{job_id}/checkpoints/{checkpoint_id}/archive")
def read_checkpoint(
    request: Request,
    viewer: Annotated[Viewer, sees(Permission.LOG_READ)],
    job_id: str,
    checkpoint_id: str,
    *,
    unverified: bool = False,
) -> Response:
    """Redirect to the checkpoint as an archive, by a link that is signed now. The read is audited."""
    found = JobId(require_id("job", job_id)), CheckpointId(require_id("checkpoint", checkpoint_id))
    url = signed_archive(dependencies_of(request), viewer.principal, *found, has_doubtful=unverified)
    return RedirectResponse(url, status_code=303, headers={"Cache-Control": "no-store"})
