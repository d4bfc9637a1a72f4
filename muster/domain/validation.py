"""A JSON document as a model, or all that is wrong with it at once.

Pydantic asks a model's own rules (that two fields do not contradict each other) only once each of its fields is right.
So a document with wrong fields is read a second time without them, and what the rules state then is reported too.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from muster.domain.errors import FieldFault, ValidationFailedError
from muster.domain.validation_texts import Place, text_of

Model = TypeVar("Model", bound=BaseModel)
_RULE: Final = "value_error"
_OF_LENGTH: Final = frozenset({"too_short", "too_long"})
"""Pydantic also reports these of a list with wrong items: it leaves those out before it counts the others."""


def validated(model: type[Model], document: Mapping[str, Any]) -> Model:
    """Return ``document``, which consists of JSON values, as ``model``.

    Raises:
        ValidationFailedError: with every fault and its place, never with the value itself.
    """
    text = json.dumps(document)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        found = _faults_of(model, error)
    faults = [fault for _, fault in found]
    faults += _of_rules(model, json.loads(text), [place for place, _ in found])
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    raise ValidationFailedError(f"{first.pointer}: {first.detail}{more}", faults=tuple(faults))


def _faults_of(model: type[BaseModel], error: ValidationError) -> list[tuple[Place, FieldFault]]:
    told = error.errors(include_input=False, include_url=False)
    wrong = {each["loc"][:depth] for each in told for depth in range(len(each["loc"]))}
    found = [each for each in told if each["type"] not in _OF_LENGTH or each["loc"] not in wrong]
    return [
        (
            place := each["loc"],
            FieldFault(
                _pointer(place), each["type"], text_of(model, place, each["type"], each["msg"], each.get("ctx", {}))
            ),
        )
        for each in found
    ]


def _pointer(place: Place) -> str:
    return "/" + "/".join(str(part) for part in place)


def _of_rules(model: type[BaseModel], document: Any, wrong: list[Place]) -> Iterator[FieldFault]:
    """Yield the faults that rules find in the rest. ``document`` is changed.

    A fault that names an omitted field is left out: the field's default took its place.
    """
    left_out = [place for each in wrong if (place := _without(document, each)) is not None]
    if not left_out:
        return
    try:
        model.model_validate_json(json.dumps(document))
    except ValidationError as error:
        for place, fault in _faults_of(model, error):
            names = {re.escape(str(out[-1])) for out in left_out if out[: len(place)] == place}
            is_about_it = any(re.search(rf"\b{name}\b", fault.detail) for name in names)
            if fault.code == _RULE and place not in wrong and not is_about_it:
                yield fault


def _without(document: Any, place: Place) -> Place | None:
    """Remove the innermost field that ``place`` names from ``document``, and return its place.

    None: there is no such field, such as a missing one. Of a list the whole field is removed, since the indices of its
    other items would shift.
    """
    at, holder = document, None
    taken: Place = ()
    for depth, part in enumerate(place):
        if isinstance(at, dict) and part in at:
            holder, taken = at, place[: depth + 1]
        elif not isinstance(at, list) or not isinstance(part, int) or part >= len(at):
            break
        at = at[part]
    if holder is None or (isinstance(at, dict) and len(taken) < len(place) and place[-1] not in at):
        return None
    del holder[taken[-1]]
    return taken
