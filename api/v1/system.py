"""Routes of health, metrics, the pages that problems point to, and the documents of this API: all work offline."""

from functools import lru_cache
from typing import Annotated, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from api.dependencies import dependencies_of
from api.documentation_page import Page, documentation_page
from api.permissions import public, requires
from api.refusals import refusing_also
from control.system.read import schema_needed, schema_revision
from muster import __version__, documents
from muster.documents.job_file_schema import described_job_file_schema
from muster.domain.errors import REGISTRY, NotFoundError, UnavailableError
from muster.domain.principals import Permission, Principal

router = APIRouter(tags=["system"])
v1 = APIRouter(tags=["system"])
CSP: Final = (
    "default-src 'none'; style-src 'sha256-{digest}'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


@router.get(
    "/healthz",
    dependencies=[public("a load balancer asks whether the process lives"), refusing_also(UnavailableError)],
)
def healthz(request: Request) -> documents.Health:
    """Check that each loop of this process advances; 503 otherwise: then start the process again."""
    stalled = [f"{each.name} for {each.age_s:.0f} s" for each in request.app.state.loops if each.is_stalled]
    if stalled:
        message = f"these loops of the API have not advanced: {', '.join(stalled)}"
        raise UnavailableError(message, suggestion="Start the process again; its log may name the cause.")
    return {"status": "ok", "version": __version__}


@router.get(
    "/readyz",
    dependencies=[public("a load balancer asks whether requests can be served"), refusing_also(UnavailableError)],
)
def readyz(request: Request) -> documents.Health:
    """Check that the database answers and is at this version's revision; 503 otherwise."""
    revision, needed = schema_revision(dependencies_of(request).units), schema_needed()
    if revision != needed:
        message = f"the database is at revision {revision}; this version needs {needed}"
        raise UnavailableError(message, suggestion="Run `muster migrate`.", retry_after_s=5)
    return {"status": "ready", "version": __version__}


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request, _principal: Annotated[Principal, requires(Permission.METRICS_READ)]) -> Response:
    """Return metrics as Prometheus text; needs an operator's key."""
    return Response(generate_latest(dependencies_of(request).registry), media_type=CONTENT_TYPE_LATEST)


@v1.get("/problems/{code}", dependencies=[public("problem documents point here")])
def problem(code: str) -> documents.ProblemKind:
    """Return the meaning of a problem's code, and what to do."""
    kind = REGISTRY.get(code)
    if kind is None:
        raise NotFoundError
    return {"code": kind.code, "status": kind.status, "title": kind.title, "suggestion": kind.advice}


@v1.get(
    "/openapi.json",
    response_model=documents.Json,
    dependencies=[public("the API's description holds nothing of any tenant")],
)
def openapi(request: Request) -> JSONResponse:
    return JSONResponse(request.app.openapi())


@lru_cache(maxsize=1)
def _documentation_of(app: FastAPI) -> Page:
    """Return the page, which is made once: anybody may ask for it, and it takes a tenth of a second."""
    return documentation_page(app.openapi())


@v1.get(
    "/schemas/job.json",
    response_model=documents.Json,
    dependencies=[public("the form of a job file holds nothing of any tenant")],
)
def job_schema() -> JSONResponse:
    """Return the JSON Schema of a job file, for editors."""
    return JSONResponse(described_job_file_schema())


@v1.get(
    "/docs", dependencies=[public("the API's description holds nothing of any tenant")], response_class=HTMLResponse
)
def docs(request: Request) -> HTMLResponse:
    """Return the operations on one page: no script, nothing from elsewhere."""
    page = _documentation_of(request.app)
    return HTMLResponse(page.html, headers={"Content-Security-Policy": CSP.format(digest=page.style_digest)})
