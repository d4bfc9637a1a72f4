"""Changes that a page offers: each shows its effect first, then does it, in one unit of work of a service."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.dependencies import dependencies_of
from api.effect_views import effect_view
from console.rendering import is_fragment, pages_of
from console.session import Viewer
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, retrying
from control.system.effects.effects import try_change
from muster.documents.effect_lines import effect_parts
from muster.domain.errors import ValidationFailedError

MAX_REASON: Final = 500
PREVIEW: Final = "preview"


def act(
    request: Request,
    viewer: Viewer,
    fields: Mapping[str, str],
    action: str,
    work: Callable[[UnitOfWork], Any],
    *,
    back_to: str,
    done: str,
) -> Response:
    """Show the effect of ``work``, rolled back, with ``step=preview``; else do it, and redirect with ``done``.

    Raises:
        MusterError: as the service raises it; shown in the dialog of the change.
    """
    units = dependencies_of(request).units
    if fields.get("step") == PREVIEW:
        _, _, effect = retrying(lambda: try_change(units, viewer.principal, action, work))
        template = "parts/preview.html" if is_fragment(request) else "preview.html"
        parts = effect_parts(effect_view(effect))
        return pages_of(request).page(request, template, viewer, parts=parts, back_to=back_to)
    retrying(lambda: _done(units, viewer, action, work))
    where = f"{back_to}{'&' if '?' in back_to else '?'}done={quote(done)}"
    if is_fragment(request):
        return Response(status_code=204, headers={"HX-Redirect": where})
    return RedirectResponse(where, status_code=303)


def _done(units: UnitOfWorkFactory, viewer: Viewer, action: str, work: Callable[[UnitOfWork], Any]) -> None:
    with units.begin(viewer.principal, action) as unit:
        work(unit)


def reason_in(fields: Mapping[str, str]) -> str:
    """Return the reason. Raises ``ValidationFailedError``: no reason, or more than 500 characters."""
    reason = fields.get("reason", "").strip()
    if not reason or len(reason) > MAX_REASON:
        raise ValidationFailedError.at("/reason", "needed", f"say why, in 1 to {MAX_REASON} characters")
    return reason


def require_typed_name(fields: Mapping[str, str], name: str) -> None:
    """Check the typed name before a GPU or rack leaves the fleet, or a secret is deleted. A preview needs none.

    Raises:
        ValidationFailedError: the name that was typed is not the thing's own.
    """
    if fields.get("step") != PREVIEW and fields.get("typed", "").strip() != name:
        raise ValidationFailedError.at("/typed", "not_the_name", f"type {name} to confirm")
