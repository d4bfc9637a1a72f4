"""Pages of GPUs: a table, and one in full: standing and reasons, conditions of its return, readings, attempts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from api.cursors import make_cursor, read_cursor
from api.dependencies import dependencies_of
from api.reading import reading
from console.pages.gpu_changes import BACK
from console.rendering import is_fragment, pages_of
from console.session import Viewer, sees
from console.words import charted, span
from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.fleet.fault_timeline import READ, FaultTimeline, fault_timelines
from control.fleet.gpu_admission import by_ways
from control.fleet.gpu_jobs import PastHolder, past_holders
from control.fleet.node_names import names_of
from control.fleet.read import GpuFilter, ListedGpu, list_gpus
from control.fleet.tenant_gpus import ATTEMPTS_SHOWN, tenant_gpu
from control.health.burn_ins.comparing import ComparedBurnIn, compare
from control.health.gpu_details import GpuDetail, detail_of
from control.telemetry.history import History, Series, history_of
from control.telemetry.latest import Latest, latest_of
from muster.domain.errors import NotFoundError, ValidationFailedError
from muster.domain.evidence.repairs import RepairAction
from muster.domain.gpu.metrics import NOT_ON_ALL
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.principals import Permission
from muster.domain.states import Standing
from muster.sizes import rate_in_words

router = APIRouter()
A_PAGE: Final = 100
CHARTED: Final = (
    "temperature_c",
    "power_w",
    "utilisation_percent",
    "tensor_active_percent",
    "sm_clock_mhz",
    "nvlink_sent_bytes_per_s",
    "nvlink_received_bytes_per_s",
)
REPORTED: Final = (
    ("temperature_c", "Temperature"),
    ("memory_temperature_c", "Memory temperature"),
    ("power_w", "Power"),
    ("utilisation_percent", "Utilisation"),
    ("tensor_active_percent", "Tensor cores active"),
    ("sm_clock_mhz", "SM clock"),
    ("memory_used_mib", "Memory in use"),
    ("nvlink_sent_bytes_per_s", "NVLink sent"),
    ("nvlink_received_bytes_per_s", "NVLink received"),
    ("ecc_uncorrected_aggregate", "Uncorrectable ECC, of its life"),
    ("remapped_rows_uncorrected", "Rows remapped"),
    ("pcie_replays", "PCIe replays"),
)
Uuid = Annotated[str, Path(pattern=r"^[!-~]{1,128}$")]
GpuReader = Annotated[Viewer, sees(Permission.GPU_READ)]


@router.get("/gpus")
def list_page(
    request: Request,
    viewer: GpuReader,
    standing: Annotated[list[str] | None, Query(max_length=len(Standing))] = None,
    cordoned: Annotated[str, Query(pattern="^(yes|no)?$")] = "",
    model: Annotated[str, Query(max_length=100)] = "",
    uuid: Annotated[str, Query(max_length=128)] = "",
    cursor: Annotated[str | None, Query(max_length=1024)] = None,
) -> Response:
    """Show GPUs by node and slot, a page at a time."""
    dependencies = dependencies_of(request)
    standings = _standings_in(standing or ())
    wanted = GpuFilter(
        standings=standings,
        model=model.strip() or None,
        uuid=uuid.strip() or None,
        is_cordoned=cordoned == "yes" if cordoned else None,
    )
    filters = {"console": "gpus", "standing": sorted(standings), "cordoned": cordoned, "model": model, "uuid": uuid}
    place = None if cursor is None else read_cursor(dependencies.secret_key, filters, cursor, length=2)

    def read(unit: UnitOfWork) -> tuple[Sequence[ListedGpu], Mapping[NodeId, str]]:
        found = list_gpus(unit, wanted, Part(A_PAGE + 1, place))
        return found, names_of(unit, {each.gpu.node_id for each in found})

    found, node_names = reading(dependencies.units, viewer.principal, READ, read)
    shown, next_cursor = found[:A_PAGE], None
    if len(found) > A_PAGE:
        last = shown[-1].gpu
        next_cursor = make_cursor(dependencies.secret_key, filters, [last.node_id, str(last.slot_index)])
    return pages_of(request).page(
        request,
        "gpus.html",
        viewer,
        place="fleet",
        found=shown,
        node_names=node_names,
        next_cursor=next_cursor,
        chosen=standings,
        cordoned=cordoned,
        model=model,
        uuid=uuid,
        standings=list(Standing),
    )


def _standings_in(texts: Sequence[str]) -> list[Standing]:
    """Return the standings; ``any`` is none. Raises ``ValidationFailedError``: a word that is no standing."""
    try:
        return [Standing(text) for text in texts if text]
    except ValueError:
        accepted = ", ".join(Standing)
        raise ValidationFailedError.at("standing", "unknown", f"is one of: {accepted}") from None


@dataclass(frozen=True, slots=True)
class _Shown:
    """Everything on an operator's page of one GPU, read in one transaction."""

    detail: GpuDetail
    timelines: Sequence[FaultTimeline]
    assignments: Sequence[PastHolder]
    burn_ins: Sequence[ComparedBurnIn]
    latest: Latest | None


@router.get("/gpus/{uuid}")
def gpu_page(request: Request, viewer: Annotated[Viewer, sees(Permission.JOB_READ)], uuid: Uuid) -> Response:
    """Show a GPU in full to operators; to a tenant only what concerns its jobs."""
    units, named = dependencies_of(request).units, GpuUuid(uuid)
    if not viewer.may(Permission.GPU_READ):
        own = reading(units, viewer.principal, READ, lambda unit: tenant_gpu(unit, named))
        timelines = reading(units, viewer.principal, READ, lambda unit: fault_timelines(unit, limit=5, gpu_uuid=named))
        return pages_of(request).page(
            request, "own_gpu.html", viewer, place="fleet", own=own, fault_timelines=timelines
        )
    shown = reading(units, viewer.principal, READ, lambda unit: _read(unit, named))
    return pages_of(request).page(
        request,
        "parts/gpu_live.html" if is_fragment(request) else "gpu.html",
        viewer,
        place="fleet",
        gpu=shown.detail.gpu,
        detail=shown.detail,
        fault_timelines=shown.timelines,
        stays=shown.assignments,
        burn_ins=shown.burn_ins,
        readings=_readings(shown.latest),
        segments=_segments(shown.detail),
        ways_back=by_ways(shown.detail.admission),
        repair_actions=list(RepairAction),
        back=BACK.format(uuid=uuid),
    )


def _read(unit: UnitOfWork, uuid: GpuUuid) -> _Shown:
    detail = detail_of(unit, uuid)
    return _Shown(
        detail,
        fault_timelines(unit, limit=3, gpu_uuid=uuid),
        past_holders(unit, uuid, Part(ATTEMPTS_SHOWN)),
        compare(unit, uuid, Part(5)).burn_ins,
        _latest(unit, uuid),
    )


def _latest(unit: UnitOfWork, uuid: GpuUuid) -> Latest | None:
    try:
        return latest_of(unit, uuid)
    except NotFoundError:
        return None


def _readings(latest: Latest | None) -> list[tuple[str, str]]:
    if latest is None:
        return []
    known = {name: value for name, value in latest.values.items() if value is not None or name not in NOT_ON_ALL}
    return [(label, _with_unit(name, known[name])) for name, label in REPORTED if name in known]


def _with_unit(name: str, value: float | None) -> str:
    if name.endswith("_bytes_per_s"):
        return rate_in_words(value)
    units: Mapping[str, str] = {"_c": "°C", "_w": "W", "_percent": "%", "_mhz": "MHz", "_mib": "MiB"}
    unit = next((unit for ending, unit in units.items() if name.endswith(ending)), "")
    return "unsupported" if value is None else f"{value:,.0f} {unit}".rstrip()


def _segments(detail: GpuDetail) -> list[tuple[str, float, str]]:
    """Return its standings as shares of the time that its moves reach back, the oldest first."""
    moves = list(reversed(detail.moves))
    if not moves:
        return []
    ends = [move.at for move in moves[1:]] + [datetime.now(moves[0].at.tzinfo)]
    whole_s = max((ends[-1] - moves[0].at).total_seconds(), 1e-3)
    found = []
    for move, end in zip(moves, ends, strict=True):
        lasted_s = max((end - move.at).total_seconds(), 0.0)
        found.append((move.target.value, lasted_s / whole_s, f"{move.target} for {span(lasted_s)}: {move.reason}"))
    return found


def _drawn(one: Series, first_ms: float, step_ms: float) -> dict[str, Any]:
    """Return a metric's line for static/charts.js."""
    unit, values = charted(one.metric.unit, one.values)
    points = [[round(first_ms + place * step_ms), value] for place, value in enumerate(values) if value is not None]
    return {"name": one.metric.words, "metric": one.metric.name, "unit": unit, "points": points}


@router.get("/gpus/{uuid}/history.json")
def history(request: Request, viewer: GpuReader, uuid: Uuid) -> Response:
    """Return the last hour for the page's charts, with the times at which evidence began."""
    units, named = dependencies_of(request).units, GpuUuid(uuid)

    def read(unit: UnitOfWork) -> tuple[History, GpuDetail]:
        return history_of(unit, named, metrics=CHARTED), detail_of(unit, named)

    found, detail = reading(units, viewer.principal, READ, read)
    first_ms, step_ms = found.since.timestamp() * 1000, found.step_s * 1000
    series = [_drawn(one, first_ms, step_ms) for one in found.series]
    marks = [
        {"at": each.row.onset_at.timestamp() * 1000, "words": each.row.summary, "kind": each.row.detector}
        for each in detail.evidence
        if each.row.onset_at >= found.since
    ]
    until_ms = found.until.timestamp() * 1000
    return JSONResponse({"series": series, "marks": marks, "range": [round(first_ms), round(until_ms)]})
