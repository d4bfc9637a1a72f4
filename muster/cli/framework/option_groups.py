"""Groups of options: a command takes a dataclass as one parameter, and Typer sees an option for each of its fields.

@dataclass(frozen=True)
class Limits:                                       def submit(program: …, limits: Limits): …
cpus: Annotated[float | None, …] = None         $ muster job submit --cpus 2 …
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


def options_of(work: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of ``work``, with the fields of a group in the place of the group."""
    found = [each for parameter in _parameters_of(work) for each in _expanded(parameter)]
    return sorted(found, key=lambda each: each.kind)  # keyword-only ones come last


def given_to(work: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for ``work`` from the values of ``options_of(work)``."""
    arguments = {}
    for parameter in _parameters_of(work):
        group = parameter.annotation
        if _is_group(group):
            arguments[parameter.name] = group(**{field.name: given[field.name] for field in fields(group)})
        else:
            arguments[parameter.name] = given[parameter.name]
    return arguments


def with_options(
    command: Callable[..., int], work: Callable[..., Any], added: Mapping[str, tuple[Any, Any]]
) -> Callable[..., int]:
    """Return ``command`` with the parameters of ``work`` and the added ones, as Typer reads them."""
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]
    parameters = [*options_of(work), *options]
    command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__, command.__name__ = work.__doc__, work.__name__
    return command


def grouped(work: Callable[..., int]) -> Callable[..., int]:
    """Return a command that takes the options of the groups of ``work``, and returns its exit code."""

    def command(**given: Any) -> int:
        return work(**given_to(work, given))

    return with_options(command, work, {})


def _parameters_of(work: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(work, eval_str=True).parameters.values())


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _expanded(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not _is_group(parameter.annotation):
        yield parameter
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    for field in fields(parameter.annotation):
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
