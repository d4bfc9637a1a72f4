"""Changes of one GPU by a person: each with a reason, first as a preview of its effect, then done."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, TypeVar

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from console.actions import act, reason_in, require_typed_name
from console.forms import Form
from console.session import Viewer, changes
from control.fleet import cordons, overrides
from control.health import interventions
from control.health.burn_ins import orders
from control.health.gpu_details import known_uuid
from muster.domain.errors import ValidationFailedError
from muster.domain.evidence.repairs import RepairAction, RepairBy
from muster.domain.ids import EvidenceId, GpuUuid
from muster.domain.principals import Permission
from muster.domain.states import Standing

router = APIRouter()
BACK: Final = "/console/gpus/{uuid}"
MAX_DAYS: Final = 365
Uuid = Annotated[str, Path(pattern=r"^[!-~]{1,128}$")]
Governor = Annotated[Viewer, changes(Permission.GPU_WRITE)]
Word = TypeVar("Word", bound=StrEnum)
Keeper = Annotated[Viewer, changes(Permission.NODE_WRITE)]


@router.post("/gpus/{uuid}/burn-in")
def burn_in(request: Request, viewer: Governor, fields: Form, uuid: Uuid) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        orders.ORDER,
        lambda unit: orders.order(unit, GpuUuid(uuid), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="A burn-in is ordered: it runs as soon as nothing holds the GPU.",
    )


@router.post("/gpus/{uuid}/quarantine")
def quarantine(request: Request, viewer: Governor, fields: Form, uuid: Uuid) -> Response:
    """Set a person's standing over the GPU's own, for a number of days: its running attempt is evacuated."""
    reason, until = reason_in(fields), datetime.now(UTC) + timedelta(days=_days_in(fields))
    return act(
        request,
        viewer,
        fields,
        overrides.OVERRIDE,
        lambda unit: overrides.override(unit, GpuUuid(uuid), Standing.QUARANTINED, until=until, reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="Quarantined by you: its running job is evacuated.",
    )


@router.post("/gpus/{uuid}/release")
def release(request: Request, viewer: Governor, fields: Form, uuid: Uuid) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        overrides.RELEASE,
        lambda unit: overrides.release(unit, GpuUuid(uuid), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="Released: its own standing counts again.",
    )


def _days_in(fields: Mapping[str, str]) -> int:
    """Return the days. Raises ``ValidationFailedError``: no whole number of days from 1 to 365."""
    text = fields.get("days", "7").strip()
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not 1 <= int(text) <= MAX_DAYS:
        raise ValidationFailedError.at("/days", "out_of_range", f"is a whole number of days from 1 to {MAX_DAYS}")
    return int(text)


@router.post("/gpus/{uuid}/cordon")
def cordon(request: Request, viewer: Keeper, fields: Form, uuid: Uuid) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        cordons.CREATE,
        lambda unit: cordons.create(unit, gpu_uuid=known_uuid(unit, GpuUuid(uuid)), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="Cordoned: nothing new is placed on it.",
    )


@router.post("/gpus/{uuid}/cordons/{cordon_id}/release")
def release_cordon(request: Request, viewer: Keeper, fields: Form, uuid: Uuid, cordon_id: str) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        cordons.RELEASE,
        lambda unit: cordons.release(unit, cordon_id, reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="That cordon is released.",
    )


@router.post("/gpus/{uuid}/evidence/{evidence_id}/dismiss")
def dismiss(request: Request, viewer: Governor, fields: Form, uuid: Uuid, evidence_id: str) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        interventions.DISMISS,
        lambda unit: interventions.dismiss(unit, GpuUuid(uuid), EvidenceId(evidence_id), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="The evidence is dismissed; it stays on record.",
    )


@router.post("/gpus/{uuid}/retire")
def retire(request: Request, viewer: Governor, fields: Form, uuid: Uuid) -> Response:
    reason = reason_in(fields)
    require_typed_name(fields, uuid)
    return act(
        request,
        viewer,
        fields,
        interventions.RETIRE,
        lambda unit: interventions.retire(unit, GpuUuid(uuid), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="Retired: its running job is evacuated.",
    )


@router.post("/gpus/{uuid}/reinstate")
def reinstate(request: Request, viewer: Governor, fields: Form, uuid: Uuid) -> Response:
    reason = reason_in(fields)
    return act(
        request,
        viewer,
        fields,
        interventions.REINSTATE,
        lambda unit: interventions.reinstate(unit, GpuUuid(uuid), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="Reinstated: its burn-in follows.",
    )


@router.post("/gpus/{uuid}/repair")
def start_repair(request: Request, viewer: Governor, fields: Form, uuid: Uuid) -> Response:
    reason = reason_in(fields)
    action = _one_of(RepairAction, fields, "action", "")
    by = _one_of(RepairBy, fields, "by", RepairBy.PERSON)
    return act(
        request,
        viewer,
        fields,
        interventions.START_REPAIR,
        lambda unit: interventions.start_repair(unit, GpuUuid(uuid), action=action, reason=reason, by=by),
        back_to=BACK.format(uuid=uuid),
        done="In repair." if by is RepairBy.PERSON else "In repair: its host's agent is given the order.",
    )


def _one_of(kind: type[Word], fields: Mapping[str, str], name: str, default: str) -> Word:
    """Return the word as its enum. Raises ``ValidationFailedError``: a word that is none of its kind."""
    try:
        return kind(fields.get(name, default))
    except ValueError:
        accepted = ", ".join(each.value for each in kind)
        raise ValidationFailedError.at(f"/{name}", "unknown", f"is one of: {accepted}") from None


@router.post("/gpus/{uuid}/repair/{outcome}")
def end_repair(
    request: Request,
    viewer: Governor,
    fields: Form,
    uuid: Uuid,
    outcome: Annotated[str, Path(pattern="^(finish|fail)$")],
) -> Response:
    reason = reason_in(fields)
    end = interventions.finish_repair if outcome == "finish" else interventions.fail_repair
    return act(
        request,
        viewer,
        fields,
        interventions.END_REPAIR,
        lambda unit: end(unit, GpuUuid(uuid), reason=reason),
        back_to=BACK.format(uuid=uuid),
        done="The repair is done: its burn-in follows." if outcome == "finish" else "The repair failed.",
    )
