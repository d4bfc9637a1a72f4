"""Query parameters that a route does not declare are refused: a filter that is ignored answers about everything.

Each route of the API and the console is a ``StrictRoute``, so no route can leave the check out. The check is the last
dependency of its route: a caller that may not call learns that first.
"""

from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params, get_parameterless_sub_dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute, iter_route_contexts

from api.refusals import refusing
from muster.domain.errors import FieldFault, ValidationFailedError

CODE: Final = "unknown_parameter"
NEAR: Final = 0.4
"""Likeness from which a parameter is named as the one that was meant: `status` is not far from `standing`."""
MAX_FAULTS: Final = 8
"""Unknown parameters of one request that are named."""
MAX_NAME: Final = 64
"""Characters of an unknown parameter's name that are repeated."""


class StrictRoute(APIRoute):
    """Route that refuses query parameters other than its own, its dependencies', and ``of_every_route``."""

    of_every_route: tuple[str, ...] = ()

    def __init__(self, path: str, endpoint: Callable[..., Any], **settings: Any) -> None:
        super().__init__(path, endpoint, **settings)
        self.query_names = tuple(sorted(set(_names_in(self.dependant))))
        check = refusing(_check_of(self.query_names, self.of_every_route), ValidationFailedError)
        last = get_parameterless_sub_dependant(depends=Depends(check), path=self.path_format)
        self.dependant.dependencies.append(last)


def add_strict_routes(
    root: APIRouter,
    prefix: str,
    router: APIRouter,
    *,
    kind: type[StrictRoute] = StrictRoute,
    is_in_schema: bool = True,
) -> None:
    """Add the routes of ``router`` to ``root`` as strict ones, in one router. ``is_in_schema``: in the API's document.

    Raises:
        TypeError: something in the router is no route with a path.
    """
    for found in iter_route_contexts(router.routes):
        if found.path is None or found.endpoint is None:
            raise TypeError(f"{found.original_route!r} is no route with a path")
        root.add_api_route(
            prefix + found.path,
            found.endpoint,
            response_model=found.response_model,
            status_code=found.status_code,
            tags=found.tags,
            dependencies=found.dependencies,
            summary=found.summary,
            description=found.description,
            responses=found.responses,
            methods=found.methods,
            name=found.name,
            response_class=found.response_class,
            openapi_extra=found.openapi_extra,
            include_in_schema=is_in_schema and found.include_in_schema,
            route_class_override=kind,
        )


def unknown_parameters(query: bytes, accepted: Sequence[str], unnamed: Sequence[str] = ()) -> tuple[FieldFault, ...]:
    """Return the fault of each parameter in ``query`` that is not among ``accepted``, in their order.

    ``unnamed`` are accepted too, but of no use to a person, so no text names them. After ``MAX_FAULTS`` one fault
    states how many more there are: anyone may send any number.
    """
    if not query:
        return ()
    given = dict.fromkeys(name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    known = {*accepted, *unnamed}
    strange = [name for name in given if name not in known]
    named = [name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…" for name in strange[:MAX_FAULTS]]
    faults = [FieldFault(f"query/{name}", CODE, _words(name, accepted)) for name in named]
    if num_more := len(strange) - len(faults):
        faults.append(FieldFault("query", CODE, f"and {num_more} more that this address does not accept"))
    return tuple(faults)


def refusal_of(faults: Sequence[FieldFault]) -> ValidationFailedError:
    """Return the error of these faults, for a route that is not served by the framework."""
    return ValidationFailedError(f"{faults[0].pointer}: {faults[0].detail}", faults=tuple(faults))


def _names_in(dependant: Dependant) -> Iterator[str]:
    """Yield the parameters of the query; the fields of a form that is one parameter count, and not its own name."""
    yield from (field.alias for field in get_flat_params(Dependant(query_params=dependant.query_params)))
    for inner in dependant.dependencies:
        yield from _names_in(inner)


def _check_of(accepted: Sequence[str], unnamed: Sequence[str]) -> Callable[[Request], Any]:
    async def check(request: Request) -> None:
        if faults := unknown_parameters(request.scope["query_string"], accepted, unnamed):
            found = [{"loc": each.pointer.split("/", 1), "type": each.code, "msg": each.detail} for each in faults]
            raise RequestValidationError(found)

    return check


def _words(name: str, accepted: Sequence[str]) -> str:
    if not accepted:
        return "there is no such parameter; this address accepts none"
    near = get_close_matches(name.lower(), accepted, n=1, cutoff=NEAR)
    question = f"did you mean {near[0]}? " if near else ""
    return f"there is no such parameter; {question}this address accepts {', '.join(accepted)}"
