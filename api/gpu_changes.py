"""Common part of every change of one GPU by a person: the caller, the GPU, its version, and the answer."""

from dataclasses import dataclass
from typing import Annotated, Protocol

from fastapi import Depends, Header
from fastapi.responses import JSONResponse

from api.bodies import raw_body
from api.changes import Answer, Change, Changing, etag_of, version_in
from api.gpu_views import gpu_detail_view
from api.permissions import requires
from api.reading import require_gpu_uuid
from control.core.unit_of_work import UnitOfWork
from control.health import gpu_details
from control.health.gpu_details import GpuDetail
from muster.domain.ids import GpuUuid
from muster.domain.principals import Permission, Principal


class Work(Protocol):
    """A service's change of one GPU, with all parameters bound except these."""

    def __call__(self, unit: UnitOfWork, uuid: GpuUuid, *, expected_version: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class GpuChange:
    change: Change
    principal: Principal
    uuid: GpuUuid
    version: int | None

    def run(self, action: str, work: Work) -> JSONResponse:
        """Make the change, and answer with the GPU as it then is."""

        def do(unit: UnitOfWork) -> GpuDetail:
            work(unit, self.uuid, expected_version=self.version)
            return gpu_details.detail_of(unit, self.uuid)

        def render(found: GpuDetail) -> Answer:
            return Answer(gpu_detail_view(found), etag=etag_of(found.gpu.version))

        return self.change.run(self.principal, action, do, render)


def _requested(
    uuid: str,
    principal: Annotated[Principal, requires(Permission.GPU_WRITE)],
    _body: Annotated[bytes, Depends(raw_body)],
    change: Changing,
    if_match: Annotated[str | None, Header(description="the GPU's version, as its ETag")] = None,
) -> GpuChange:
    """Return the change. The order counts: no body is read before the caller is known, and a change has its body."""
    return GpuChange(change, principal, require_gpu_uuid(uuid), version_in(if_match, is_required=False))


ChangingGpu = Annotated[GpuChange, Depends(_requested)]
