"""The form of a plan: its fields as they were typed, the question that they ask, and their faults by their labels."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from api.strict_json import read_model
from api.v1.jobs import JobQuestion
from muster.domain.errors import FieldFault, ValidationFailedError
from muster.domain.job.placement_options import MOST_DIGITS, labels_of, layout_of, slices_of
from muster.domain.policy.quantities import MOST_S

MAX_DEPTH: Final = 8
MINUTE_S: Final = 60
MOST_MINUTES: Final = MOST_S // MINUTE_S
_QUOTED: Final = re.compile(r"`(\w+)`")
Typed = Annotated[str, Field(max_length=2_000, pattern=r"^[^\x00]*$")]
Read = TypeVar("Read")


class PlanForm(BaseModel):
    """Fields as typed. ``slices`` are words, and labels lines of ``on_labels`` and ``not_on_labels``."""

    nodes: Typed = ""
    gpus_per_node: Typed = ""
    gpus: Typed = ""
    tier: Typed = ""
    wall_minutes: Typed = ""
    min_nodes: Typed = ""
    max_nodes: Typed = ""
    tenant: Typed = ""
    within: Typed = ""
    near: Typed = ""
    balance: Typed = ""
    slices: Typed = ""
    layout: Typed = ""
    tp_across_nodes: Typed = ""
    on_labels: Typed = ""
    not_on_labels: Typed = ""
    name: Typed = ""


SIZE_FIELDS: Final = frozenset({"nodes", "gpus_per_node", "gpus"})
FOLDED: Final = ("near", "balance", "slices", "layout", "tp_across_nodes", "on_labels", "not_on_labels", "name")
"""Fields in the part that is folded while none of them is filled in."""


class Place(NamedTuple):
    """A field's label, and the ``pointer`` to its part of the question."""

    label: str
    pointer: str


PLACES: Final[Mapping[str, Place]] = {
    "tenant": Place("For", "/tenant_id"),
    "nodes": Place("Hosts", "/shape/nodes"),
    "gpus_per_node": Place("GPUs a host", "/shape/gpus_per_node"),
    "gpus": Place("GPUs in all", "/shape/gpus"),
    "tier": Place("Tier", "/tier"),
    "wall_minutes": Place("Wall time, minutes", "/wall_time_s"),
    "min_nodes": Place("Elastic from", "/shape/min_nodes"),
    "max_nodes": Place("Elastic to", "/shape/max_nodes"),
    "within": Place("All in one", "/topology/required"),
    "near": Place("In one if it can be", "/topology/preferred"),
    "balance": Place("Spread evenly over each", "/topology/balance"),
    "slices": Place("Slices", "/topology/slices"),
    "tp_across_nodes": Place("Tensor-parallel groups may span hosts", "/layout/allow_tp_across_nodes"),
    "layout": Place("Layout", "/layout"),
    "on_labels": Place("On hosts with", "/node_labels/required"),
    "not_on_labels": Place("Not on hosts with", "/node_labels/forbidden"),
    "name": Place("Name", "/name"),
}
LABELS: Final[Mapping[str, str]] = {name: place.label for name, place in PLACES.items()}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. ``field``: None where it concerns several together."""

    field: str | None
    words: str


def question_of(fields: Mapping[str, str]) -> JobQuestion:
    """Return the question. Raises ``ValidationFailedError``: fields cannot be read, or no job is like that."""
    faults: list[FieldFault] = []

    def read(name: str, reader: Callable[[str], Read]) -> Read | None:
        try:
            return reader(fields[name]) if fields[name] else None
        except ValueError as fault:
            faults.append(FieldFault(PLACES[name].pointer, "unreadable", str(fault)))
            return None

    sizes = (*sorted(SIZE_FIELDS), "min_nodes", "max_nodes")
    minutes = read("wall_minutes", _minutes)
    document = {
        "name": fields["name"],
        "tenant_id": fields["tenant"],
        "tier": fields["tier"],
        "wall_time_s": None if minutes is None else minutes * MINUTE_S,
        "shape": _filled({name: read(name, whole) for name in sizes}),
        "topology": _filled(
            {
                "required": fields["within"],
                "preferred": fields["near"],
                "balance": fields["balance"],
                "slices": read("slices", lambda text: slices_of(_words(text))),
            }
        ),
        "node_labels": _filled(
            {
                "required": read("on_labels", lambda text: labels_of(_lines(text))),
                "forbidden": read("not_on_labels", lambda text: labels_of(_lines(text))),
            }
        ),
        "layout": _layout(fields, read("layout", layout_of), faults),
    }
    if faults:
        raise ValidationFailedError("the form cannot be read", faults=tuple(faults))
    return read_model(json.dumps(_filled(document)).encode(), JobQuestion, max_depth=MAX_DEPTH)


def _layout(fields: Mapping[str, str], degrees: dict[str, int] | None, faults: list[FieldFault]) -> dict[str, Any]:
    if not fields["tp_across_nodes"]:
        return degrees or {}
    if not fields["layout"]:
        fault = "it is part of a layout, which is missing"
        faults.append(FieldFault(PLACES["tp_across_nodes"].pointer, "without_layout", fault))
    return {**(degrees or {}), "allow_tp_across_nodes": True}


def _filled(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without empty ones; a 0 is kept."""
    return {name: value for name, value in fields.items() if value not in (None, "", {}, [])}


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def whole(text: str) -> int:
    if not (text.removeprefix("-").isdecimal() and text.isascii()):
        raise ValueError(f"{text!r} is no whole number, such as 2")
    return int(text[:MOST_DIGITS])  # a longer number is too large in any case


def finite(text: str, accepted: str) -> float:
    """Return the number. Raises ValueError, which says what is accepted."""
    try:
        number = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is no {accepted}")
    return number


def _minutes(text: str) -> float:
    number = finite(text, "number of minutes, such as 90")
    if number > MOST_MINUTES:
        raise ValueError(f"must be at most {MOST_MINUTES:,}")
    return number


def faults_of(fault: ValidationFailedError) -> Sequence[Fault]:
    return [_field_fault(each) for each in fault.faults]


def _field_fault(fault: FieldFault) -> Fault:
    """Return the fault under the label of its field; fields that it quotes are named by their labels."""
    name = next((name for name, place in PLACES.items() if is_of(fault.pointer, place.pointer)), None)

    def label(match: re.Match[str]) -> str:
        pointer = f"{fault.pointer}/{match[1]}"
        return next((f"“{place.label}”" for place in PLACES.values() if place.pointer == pointer), match[1])

    last = fault.pointer.rpartition("/")[2].replace("_", " ").capitalize()
    words = _QUOTED.sub(label, fault.detail).replace("`", "")
    return Fault(name, f"{last if name is None else PLACES[name].label}: {words}")


def is_of(pointer: str, of: str) -> bool:
    """Return whether ``pointer`` names ``of``, or a part of it."""
    return pointer == of or pointer.startswith(f"{of}/")


def options_of(fields: Mapping[str, str]) -> list[tuple[str, str | bool]]:
    """Return the options of ``muster job plan`` for the same question. True: an option without a value."""
    minutes = fields["wall_minutes"]
    return [
        ("--nodes", fields["nodes"]),
        ("--gpus", fields["gpus_per_node"]),
        ("--total-gpus", fields["gpus"]),
        ("--min-nodes", fields["min_nodes"]),
        ("--max-nodes", fields["max_nodes"]),
        ("--tier", fields["tier"]),
        ("--within", fields["within"]),
        ("--near", fields["near"]),
        *(("--slice", word) for word in _words(fields["slices"])),
        ("--balance", fields["balance"]),
        ("--layout", "".join(fields["layout"].split())),
        ("--tp-across-nodes", bool(fields["tp_across_nodes"])),
        *(("--on-label", line) for line in _lines(fields["on_labels"])),
        *(("--not-on-label", line) for line in _lines(fields["not_on_labels"])),
        ("--wall-time", f"{minutes}m" if minutes else ""),
        ("--name", fields["name"]),
        ("--tenant", fields["tenant"]),
    ]
