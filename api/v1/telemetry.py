"""Routes of telemetry: the agents' report, declared here and processed by ``api.telemetry``; readings and history."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request

from api.dependencies import dependencies_of
from api.permissions import requires
from api.reading import reading, require_gpu_uuid
from api.refusals import refusing_also
from api.views import time_of
from control.telemetry import history, latest
from control.telemetry.history import History
from control.telemetry.latest import Latest
from muster import documents
from muster.domain.errors import (
    ConflictError,
    NotFoundError,
    PayloadTooLargeError,
    RateLimitedError,
    UnsupportedMediaTypeError,
    UpgradeRequiredError,
    ValidationFailedError,
)
from muster.domain.gpu.metrics import METRICS
from muster.domain.principals import Permission, Principal
from muster.wire.telemetry import Report, ReportAccepted

router = APIRouter()
Reader = Annotated[Principal, requires(Permission.GPU_READ)]
Moment = Annotated[str | None, Query(max_length=40)]
(_SCHEMAS, _DEFINITIONS) = msgspec.json.schema_components(
    [Report, ReportAccepted], ref_template="#/components/schemas/{name}"
)
_DOCUMENTED: Final[dict[str, Any]] = {
    "x-muster-definitions": _DEFINITIONS,
    "requestBody": {"required": True, "content": {"application/json": {"schema": _SCHEMAS[0]}}},
    "responses": {
        "200": {"description": "Durable now", "content": {"application/json": {"schema": _SCHEMAS[1]}}},
    },
}


_REFUSED_RECORDS: Final = (
    ConflictError,
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    ValidationFailedError,
    UpgradeRequiredError,
    RateLimitedError,
)


@router.post(
    "/telemetry",
    tags=["hosts"],
    response_model=None,
    openapi_extra=_DOCUMENTED,
    dependencies=[refusing_also(*_REFUSED_RECORDS)],
)
def take_report(_node: Annotated[Principal, requires(Permission.HOST_REPORT)]) -> None:
    """Store one report of an agent, plain or with Content-Encoding: gzip; answered once it is durable.

    A report that comes again has no effect; late ones fill history and never move latest state back.
    """
    raise NotFoundError("this path is taken before the router")


@router.get("/gpus/{uuid}/latest", tags=["fleet"])
def get_latest(uuid: str, request: Request, principal: Reader) -> documents.Latest:
    """Return the newest readings of one GPU; null where there is none."""
    units = dependencies_of(request).units
    return _latest_view(
        reading(units, principal, latest.READ, lambda unit: latest.latest_of(unit, require_gpu_uuid(uuid)))
    )


@router.get("/gpus/{uuid}/history", tags=["fleet"])
def get_history(
    uuid: str,
    request: Request,
    principal: Reader,
    metric: Annotated[list[str] | None, Query(max_length=len(METRICS))] = None,
    from_: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    until: Moment = None,
    step: Annotated[float | None, Query(gt=0, le=86_400, allow_inf_nan=False)] = None,
) -> documents.History:
    """Return readings of one GPU over time, a point a step: means of gauges, last values of counters, flags by OR.

    By default the last hour. ``gaps`` lists what the agent counted as lost in that time.
    """
    units = dependencies_of(request).units
    return _history_view(
        reading(
            units,
            principal,
            latest.READ,
            lambda unit: history.history_of(
                unit,
                require_gpu_uuid(uuid),
                metrics=tuple(metric or ()),
                since=history.read_moment("from", from_),
                until=history.read_moment("until", until),
                step_s=step,
            ),
        )
    )


def _latest_view(found: Latest) -> documents.Latest:
    return {
        "gpu_uuid": found.gpu_uuid,
        "node_id": found.node_id,
        "at": time_of(found.at),
        "received_at": time_of(found.received_at),
        "boot_id": found.boot_id,
        "seq": found.seq,
        "is_lost": found.is_lost,
        "values": found.values,
    }


def _history_view(found: History) -> documents.History:
    return {
        "gpu_uuid": found.gpu_uuid,
        "from": time_of(found.since),
        "until": time_of(found.until),
        "step_s": found.step_s,
        "series": [
            {
                "metric": series.metric.name,
                "unit": series.metric.unit,
                "kind": series.metric.kind,
                "values": series.values,
            }
            for series in found.series
        ],
        "gaps": [
            {
                "node_id": gap.node_id,
                "priority": gap.priority,
                "from": time_of(gap.from_at),
                "until": time_of(gap.until_at),
                "num_reports": gap.num_reports,
                "why": gap.why,
            }
            for gap in found.gaps
        ],
    }
