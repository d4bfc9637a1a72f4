"""A report in which some readings are no numbers: these are set aside, so that the rest of it counts.

For what the strict decoder refused, and for nothing else: an agent with one broken sensor, or one that is not ours,
must not lose its events. Text, true and false, NaN and infinities are no readings, and neither is a number past all
bounds. Any other fault remains: the caller decodes the result strictly again.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

MOST: Final = 1e15
"""As in ``wire.telemetry.Values``."""


class _NoNumber:
    """A placeholder for a value that is no JSON number. Nothing can encode it, so no result contains one."""


_NO_NUMBER: Final = _NoNumber()


@dataclass(frozen=True, slots=True)
class Readable:
    """The readable part of a report.

    ``body``: JSON without the values that were set aside. ``gpus``: UUIDs of the GPUs whose samples were set aside.
    ``num_values``: how many values of events were; an event keeps its others.
    """

    body: bytes
    gpus: tuple[str, ...] = ()
    num_values: int = 0


def readable_part(body: bytes) -> Readable | None:
    """Return the readable part, or None where nothing could be set aside: the body has another fault."""
    try:
        document = json.loads(
            body.decode(), parse_float=_finite(float), parse_constant=lambda _: _NO_NUMBER, parse_int=_finite(int)
        )
    except (ValueError, RecursionError):
        return None
    found = set_aside(document)
    if found is None:
        return None
    try:
        return Readable(msgspec.json.encode(document), *found)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def set_aside(document: object) -> tuple[tuple[str, ...], int] | None:
    """Remove unreadable samples and values from ``document``, which is changed.

    Return the UUIDs of the samples and the number of values of events, or None where nothing was removed.
    """
    if not isinstance(document, dict):
        return None
    gpus = _samples_set_aside(document)
    num_values = sum(_values_set_aside(event) for event in _list_in(document, "events"))
    return (gpus, num_values) if gpus or num_values else None


def _samples_set_aside(document: dict[str, Any]) -> tuple[str, ...]:
    kept, found = [], list[str]()
    for gpu in _list_in(document, "gpus"):
        uuid = gpu.get("uuid") if isinstance(gpu, dict) else None
        if isinstance(uuid, str) and any(_is_no_reading(value) for value in _list_in(gpu, "values")):
            found.append(uuid)
        else:
            kept.append(gpu)
    if found:
        document["gpus"] = kept
    return tuple(found)


def _values_set_aside(event: object) -> int:
    values = event.get("values") if isinstance(event, dict) else None
    if not isinstance(values, dict):
        return 0
    wrong = [name for name, value in values.items() if _is_no_reading(value)]
    for name in wrong:
        del values[name]
    return len(wrong)


def _list_in(document: dict[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    return found if isinstance(found, list) else []


def _is_no_reading(value: object) -> bool:
    if isinstance(value, str | bool | _NoNumber):
        return True
    return isinstance(value, int | float) and not -MOST <= value <= MOST


def _finite(kind: Callable[[str], float]) -> Callable[[str], object]:
    def read(text: str) -> object:
        value = kind(text)
        return value if math.isfinite(value) else _NO_NUMBER

    return read
