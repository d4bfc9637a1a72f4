"""Form of a node's maintenance window on its page: start, duration and reason."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from console.actions import act, reason_in
from console.forms import Form
from console.session import Viewer, changes
from control.fleet import maintenance
from muster.domain.errors import ValidationFailedError
from muster.domain.principals import Permission

router = APIRouter()
MAX_HOURS: Final = int(maintenance.LONGEST / timedelta(hours=1))


@router.post("/nodes/{node_id}/maintenance")
def declare(
    request: Request,
    viewer: Annotated[Viewer, changes(Permission.NODE_WRITE)],
    fields: Form,
    node_id: Annotated[str, Path(pattern=r"^[!-~]{1,253}$")],
) -> Response:
    reason, now = reason_in(fields), datetime.now(UTC)
    begins_in, lasts = _hours_in(fields, "begins_in", 0, least=0), _hours_in(fields, "lasts", 2, least=1)
    starts_at = now + timedelta(hours=begins_in) if begins_in else None
    until = (starts_at or now) + timedelta(hours=lasts)
    return act(
        request,
        viewer,
        fields,
        maintenance.DECLARE,
        lambda unit: maintenance.declare(unit, node_id, reason=reason, until=until, starts_at=starts_at),
        back_to=f"/console/nodes/{node_id}",
        done="The window is declared: in it nothing new comes here, and findings here do not count.",
    )


def _hours_in(fields: Mapping[str, str], name: str, usual: int, *, least: int) -> int:
    """Return the hours. Raises ``ValidationFailedError``: no whole number of hours within the longest window."""
    text = fields.get(name, str(usual)).strip()
    if not text.isascii() or not text.isdigit() or len(text) > 3 or not least <= int(text) <= MAX_HOURS:
        words = f"is a whole number of hours from {least} to {MAX_HOURS}"
        raise ValidationFailedError.at(f"/{name}", "out_of_range", words)
    return int(text)
