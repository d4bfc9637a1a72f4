"""Pages from templates: escaped, under one strict policy, with the texts and times that every page shares."""

import gzip
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response, StreamingResponse

from console import icons, words
from console.session import Viewer
from console.static_files import CHARTS, HTMX, StaticFiles
from muster import __version__

TEMPLATES: Final = Path(__file__).parent / "templates"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Vary": "Accept-Encoding, Cookie, HX-Request",
}
THEME_COOKIE: Final = "muster-theme"
THEMES: Final = frozenset({"light", "dark"})
WORTH_COMPRESSING_BYTES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Place:
    """One entry of the navigation. A viewer with ``permission`` sees it; ``is_for_tenants``: of a tenant alone."""

    key: str
    label: str
    path: str
    permission: str
    is_for_tenants: bool = False

    def is_for(self, viewer: Viewer) -> bool:
        return viewer.may(self.permission) and not (self.is_for_tenants and viewer.principal.tenant_id is None)


NAVIGATION: Final = (
    Place("start", "First steps", "/console/start", "job:read", is_for_tenants=True),
    Place("fleet", "Fleet", "/console", "job:read"),
    Place("executive", "Executive", "/console/executive", "metrics:read"),
    Place("figures", "Indicators", "/console/figures", "job:read"),
    Place("capacity", "Capacity", "/console/capacity", "gpu:read"),
    Place("utilisation", "Utilisation", "/console/utilisation", "job:read"),
    Place("costs", "Costs", "/console/costs", "tenant:read"),
    Place("statements", "Statements", "/console/statements", "tenant:read"),
    Place("jobs", "Jobs", "/console/jobs", "job:read"),
    Place("secrets", "Secrets", "/console/secrets", "secret:read"),
    Place("reclaims", "Reclaims", "/console/reclaims", "job:read"),
    Place("on_call", "On call", "/console/on-call", "job:read"),
    Place("incidents", "Incidents", "/console/incidents", "incident:read"),
    Place("events", "Events", "/console/events", "event:read"),
    Place("audit", "Audit", "/console/audit", "audit:read"),
    Place("system", "System", "/console/system", "metrics:read"),
    Place("access", "Access", "/console/access", "key:read"),
)


class Pages:
    """Renderer of every page of the console."""

    def __init__(self, files: StaticFiles) -> None:
        self.files = files
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals.update(
            asset=files.url, has_asset=files.has, icon=icons.icon, version=__version__, HTMX=HTMX, CHARTS=CHARTS
        )
        self._environment.filters.update(words.TEMPLATE_FILTERS)

    def page(
        self,
        request: Request,
        template: str,
        viewer: Viewer | None,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **context: Any,
    ) -> Response:
        """Return a whole page, or the template's part of it where HTMX asks for one."""
        theme = request.cookies.get(THEME_COOKIE)
        places = [place for place in NAVIGATION if viewer is not None and place.is_for(viewer)]
        text = self._environment.get_template(template).render(
            viewer=viewer,
            places=places,
            theme=theme if theme in THEMES else None,
            now=datetime.now(UTC),
            path=request.url.path,
            query=request.url.query,
            **context,
        )
        return html(request, text, status=status, headers=headers)


def html(request: Request, text: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer, compressed where the browser accepts it and it pays."""
    content = text.encode()
    all_headers = {**HEADERS, **(headers or {})}
    if len(content) > WORTH_COMPRESSING_BYTES and takes_gzip(request):
        content = gzip.compress(content, 5, mtime=0)
        all_headers["Content-Encoding"] = "gzip"
    return HTMLResponse(content, status_code=status, headers=all_headers)


def file_answer(name: str, content: str | Iterable[str], media_type: str) -> Response:
    """Return a file to be stored under a name. ``content``: whole, or in pieces, the first of which is made at once."""
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    if isinstance(content, str):
        return Response(content, media_type=media_type, headers=headers)
    pieces = iter(content)
    first = next(pieces, "")  # so that a fault is an answer of its own, and no file that ends too early
    return StreamingResponse(chain((first,), pieces), media_type=media_type, headers=headers)


def csv_answer(name: str, content: str | Iterable[str]) -> Response:
    """Return a file for spreadsheets. ``name``: without its ending."""
    return file_answer(f"{name}.csv", content, "text/csv; charset=utf-8")


def takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "").lower()


def is_fragment(request: Request) -> bool:
    """Return whether HTMX asks for a part of the page, not a browser for the whole."""
    return request.headers.get("hx-request") == "true"


def pages_of(request: Request) -> Pages:
    pages: Pages = request.app.state.console
    return pages
