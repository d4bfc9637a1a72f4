"""The console in the API's application: its pages, its files, and its own pages for faults."""

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute

from api.address_limit import AddressLimit
from api.declared_query import StrictRoute, add_strict_routes
from api.permissions import public
from api.problems import answer_fault, error_of
from console.live_map import LiveMaps
from console.pages import (
    access,
    budget_changes,
    capacity,
    cohorts,
    costs,
    executive,
    figures,
    find,
    fleet,
    gpu_changes,
    gpus,
    job,
    job_changes,
    job_debug,
    job_logs,
    job_outputs,
    jobs,
    live,
    node_maintenance,
    nodes,
    on_call,
    plans,
    quotas,
    rack_pairs,
    records,
    secrets,
    sign_in,
    start,
    statements,
    submit,
    system,
    utilisation,
)
from console.pages import (
    install as install_pages,
)
from console.pages import (
    logins as login_pages,
)
from console.rendering import Pages, is_fragment, pages_of, takes_gzip
from console.served_wheels import ServedWheels
from console.session import COOKIE, SIGN_IN, SignInNeededError, clear_cookie, viewer_of, way_to_sign_in
from console.static_files import FOREVER, StaticFiles
from muster.domain.errors import (
    ForbiddenError,
    MusterError,
    NotFoundError,
    UnauthenticatedError,
    ValidationFailedError,
)

PREFIX: Final = "/console"
_PAGE_MODULES: Final = (
    sign_in,
    login_pages,
    live,
    fleet,
    find,
    gpus,
    gpu_changes,
    cohorts,
    budget_changes,
    capacity,
    executive,
    figures,
    utilisation,
    costs,
    statements,
    nodes,
    node_maintenance,
    rack_pairs,
    on_call,
    quotas,
    records,
    access,
    system,
    plans,
    submit,
    start,
    secrets,
    jobs,
    job,
    job_changes,
    job_debug,
    job_logs,
    job_outputs,
)
_ADVICE_OF_PROBLEM: Final[Mapping[type[MusterError], str]] = {
    ForbiddenError: "Sign in as a person whose role has that permission.",
    NotFoundError: "Look for it by its name or id, in the field on top.",
    ValidationFailedError: "Change that and try again; of an old bookmark, leave out what the page does not know.",
}
"""Advice for a person, where the API's own advice is about its documents."""


class PageRoute(StrictRoute):
    """Route of a page: after a change, its script reads from ``done`` the words about it."""

    of_every_route = ("done",)


def install(app: FastAPI) -> None:
    """Add the console to ``app``, on which the API's problems are installed already."""
    app.state.console = Pages(StaticFiles())
    app.state.live_maps = LiveMaps(app.state.dependencies.units)
    app.state.wheels = ServedWheels()
    app.state.installing = AddressLimit(install_pages.BURST, install_pages.PER_S)
    app.state.typing_codes = AddressLimit(login_pages.BURST, login_pages.PER_S)
    app.state.signing_in = AddressLimit(sign_in.BURST, sign_in.PER_S)
    app.router.routes.extend(_routes())
    for kind in (MusterError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_fault)


@functools.cache
def _routes() -> Sequence[BaseRoute]:
    """Return the routes, the same for every application: FastAPI needs long to compute them."""
    root = APIRouter()
    files = APIRouter()
    files.add_api_route(
        f"{PREFIX}/static/{{digest}}/{{name:path}}",
        _static,
        response_model=None,
        dependencies=[public("the pages' own style, scripts and fonts")],
    )
    add_strict_routes(root, "", files, kind=PageRoute, is_in_schema=False)
    add_strict_routes(root, "", install_pages.router, kind=PageRoute, is_in_schema=False)
    for module in _PAGE_MODULES:
        add_strict_routes(root, PREFIX, module.router, kind=PageRoute, is_in_schema=False)
    return root.routes


def _static(request: Request, digest: str, name: str) -> Response:
    found = pages_of(request).files.find(digest, name)
    if found is None:
        raise NotFoundError
    headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
    if found.gzipped is not None and takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        return Response(found.gzipped, media_type=found.media_type, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


async def _answer_fault(request: Request, fault: Exception) -> Response:
    """Render a fault on a page as a page; every other fault stays the API's problem document."""
    if not request.url.path.startswith(PREFIX):
        return await answer_fault(request, fault)
    return await run_in_threadpool(_face, request, error_of(fault))


def _face(request: Request, error: MusterError) -> Response:
    if isinstance(error, SignInNeededError):
        return _lead_to_sign_in(request)
    if isinstance(error, UnauthenticatedError):
        return _lead_to_sign_in(request)
    try:
        viewer = viewer_of(request)
    except MusterError:
        viewer = None
    template = "fault_part.html" if is_fragment(request) else "fault.html"
    advice = _ADVICE_OF_PROBLEM.get(type(error), error.advice) if error.suggestion == error.advice else error.suggestion
    request_id = getattr(request.state, "request_id", None)
    return pages_of(request).page(
        request, template, viewer, status=error.status, error=error, advice=advice, request_id=request_id
    )


def _lead_to_sign_in(request: Request) -> Response:
    answer: Response
    if is_fragment(request):
        answer = Response(status_code=401, headers={"HX-Redirect": SIGN_IN})
    else:
        answer = RedirectResponse(way_to_sign_in(request), status_code=303)
    if COOKIE in request.cookies:
        clear_cookie(answer)
    return answer
