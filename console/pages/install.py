"""Page of how to install the command, and a simple index (PEP 503) of the wheels that this control plane serves.

The commands name our files by address and hash, and leave the index of everything else to the person. A second index
(``--extra-index-url``) would not do: pip takes the highest version from any index, so another person's package of the
same name on a public index could replace our wheel.
"""

import re
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from api.address_limit import limited_by
from api.permissions import public
from console.rendering import pages_of
from console.served_wheels import CLIENT, PREFIX, REQUIRES_PYTHON, RUNTIME, ServedWheels, index_page
from muster import __version__
from muster.domain.errors import NotFoundError

router = APIRouter(prefix=PREFIX)
BURST: Final = 120
PER_S: Final = 4.0
_SEPARATORS: Final = re.compile(r"[-_.]+")
_OPEN: Final = [public("what is installed before anyone can sign in; it holds no secret"), limited_by("installing")]


@router.get("", dependencies=_OPEN)
def install_page(request: Request) -> Response:
    """Show the two lines that set up the command, or how to build the wheels where there are none."""
    wheels = _wheels_of(request).by_project()
    return pages_of(request).page(
        request, "install.html", None, wheels=wheels, address=address_of(request), release=__version__
    )


@router.get("/client.txt", dependencies=_OPEN)
def client_requirements(request: Request) -> Response:
    return _requirements(request, CLIENT)


@router.get("/train.txt", dependencies=_OPEN)
def runtime_requirements(request: Request) -> Response:
    return _requirements(request, RUNTIME)


@router.get("/simple/", dependencies=_OPEN)
def index(request: Request) -> Response:
    projects = _wheels_of(request).by_project()
    return HTMLResponse(index_page("Simple index", {project: f"{PREFIX}/simple/{project}/" for project in projects}))


@router.get("/simple/{project}/", dependencies=_OPEN)
def index_of_project(request: Request, project: str) -> Response:
    """List a project's one wheel; another spelling of its name leads to the normal one."""
    name = _SEPARATORS.sub("-", project).lower()
    wheel = _wheels_of(request).by_project().get(name)
    if wheel is None:
        raise NotFoundError
    if name != project:
        return RedirectResponse(f"{PREFIX}/simple/{name}/", status_code=301)
    return HTMLResponse(index_page(name, {wheel.name: wheel.path}, requires_python=REQUIRES_PYTHON))


@router.get("/wheels/{name}", dependencies=_OPEN)
def wheel_file(request: Request, name: str) -> Response:
    wheel = _wheels_of(request).named(name)
    if wheel is None:
        raise NotFoundError
    return Response(wheel.content, media_type="application/zip")


def _requirements(request: Request, project: str) -> Response:
    text = _wheels_of(request).requirements(project, address_of(request))
    if text is None:
        words = f"no wheel {project} of version {__version__} was built on this control plane"
        raise NotFoundError(words, suggestion="An operator builds it: `make wheels`, or the image again.")
    return PlainTextResponse(text)


def address_of(request: Request) -> str:
    """Return the address by which the caller reached this server; its host's form was checked at the edge."""
    return f"{request.url.scheme}://{request.headers['host']}"


def _wheels_of(request: Request) -> ServedWheels:
    wheels: ServedWheels = request.app.state.wheels
    return wheels
