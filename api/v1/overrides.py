"""Routes of overrides: a person's standing over a GPU's own, such as the operator's quarantine, and its release."""

from datetime import datetime
from functools import partial
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import Field

from api.bodies import described_by, json_body
from api.gpu_changes import ChangingGpu
from control.fleet import overrides
from muster import documents
from muster.domain.states import Standing
from muster.domain.strict import Moment, StrictModel, Text

router = APIRouter(prefix="/gpus/{uuid}/override", tags=["fleet"])
Reason = Annotated[Text, Field(min_length=1, max_length=500, pattern=r"\S")]


class NewOverride(StrictModel):
    """An override. It ends at ``until``, or when it is released."""

    standing: Annotated[Standing, Field(strict=False)]
    reason: Reason
    until: Moment


class OverrideRelease(StrictModel):
    reason: Reason


@router.post("", response_model=documents.ChangedGpu, openapi_extra=described_by(NewOverride))
def override_gpu(gpu: ChangingGpu, wanted: Annotated[NewOverride, json_body(NewOverride)]) -> JSONResponse:
    """Set a standing over the GPU's own until then, instead of an earlier one; its evidence is judged as before."""
    until: datetime = wanted.until
    work = partial(overrides.override, standing=wanted.standing, until=until, reason=wanted.reason)
    return gpu.run(overrides.OVERRIDE, work)


@router.post("/release", response_model=documents.ChangedGpu, openapi_extra=described_by(OverrideRelease))
def release_override(gpu: ChangingGpu, wanted: Annotated[OverrideRelease, json_body(OverrideRelease)]) -> JSONResponse:
    """Let the GPU's own standing count again. Twice is the same as once."""
    return gpu.run(overrides.RELEASE, partial(overrides.release, reason=wanted.reason))
