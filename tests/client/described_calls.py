"""Every call of the client with a value for each of its parameters, to be compared with the OpenAPI document."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from muster.client.calls import Call, DescribedCall, followed
from muster.client.every_call import EveryCall


@dataclass(frozen=True)
class Sample:
    """``given``: the call with every parameter; ``least``: with those alone that it needs."""

    name: str
    given: Call[Any]
    least: Call[Any]
    body_type: type[Any] | None
    is_followed: bool

    @property
    def operation(self) -> tuple[str, str]:
        return self.given.method, self.given.path


def every_call() -> list[Sample]:
    found = {
        name: each for kind in EveryCall.__mro__ for name, each in vars(kind).items() if isinstance(each, DescribedCall)
    }
    return [_sample(name, described) for name, described in sorted(found.items())]


def _sample(name: str, described: DescribedCall[Any, Any]) -> Sample:
    hints = get_type_hints(described.describe)
    parameters = list(inspect.signature(described.describe).parameters.values())[1:]
    values: dict[str, Any] = {}
    for each in parameters:
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            (conditions,) = get_args(hints[each.name])
            values |= {name: _value(hint) for name, hint in get_type_hints(conditions).items()}
        else:
            values[each.name] = _value(hints[each.name])
    needed = {
        each.name: values[each.name]
        for each in parameters
        if each.default is inspect.Parameter.empty and each.kind is not inspect.Parameter.VAR_KEYWORD
    }
    body_type = next((found for hint in hints.values() if (found := _typed_dict_in(hint))), None)
    return Sample(
        name,
        described.describe(None, **values),
        described.describe(None, **needed),
        body_type,
        isinstance(described, followed),
    )


def _value(hint: Any) -> Any:
    kinds = _alternatives(hint)
    for kind, value in ((bool, True), (int, 3), (float, 0.5), (str, "text"), (bytes, b"[1, []]")):
        if kind in kinds:
            return value
    if any(get_origin(kind) is Sequence for kind in kinds):
        return ["text"]
    if any(get_origin(kind) is Literal for kind in kinds):
        return "text"
    assert any(is_typeddict(kind) or get_origin(kind) is Mapping for kind in kinds), hint
    return {}


def _typed_dict_in(hint: Any) -> type[Any] | None:
    return next((kind for kind in _alternatives(hint) if is_typeddict(kind)), None)


def _alternatives(hint: Any) -> list[Any]:
    if get_origin(hint) in {Union, UnionType}:
        return [kind for kind in get_args(hint) if kind is not NoneType]
    return [] if get_origin(hint) is Call else [hint]
