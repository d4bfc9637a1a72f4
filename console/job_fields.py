"""Fields of the form of a job, made of the JSON Schema of a job file: what the schema has, the form has.

A field's name in the form is its JSON pointer in the job, so a fault of the API stands next to the field that it names.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from api.field_descriptions import field_text
from console.plan_form import PLACES
from muster.domain.job.file_schema import VARIABLES, job_file_schema

_OF_THE_FILE: Final = frozenset({"$schema", VARIABLES, "copied_from"})
"""Properties that no field is for: of the file alone, or set by the page itself."""
_DEFINITIONS: Final = "#/$defs/"
_VARIABLE: Final = f"{_DEFINITIONS}Variable"
_WHOLE: Final = "JobSpec"
_UNITS: Final[Mapping[str, str]] = {
    "_bytes_per_s": "bytes a second",
    "_bytes": "bytes",
    "_gpu_hours": "GPU hours",
    "_s": "seconds",
}
_ACRONYMS: Final[Mapping[str, str]] = {
    "gpus": "GPUs",
    "gpu": "GPU",
    "oom": "out-of-memory",
    "io": "disk",
    "env": "environment",
    "dir": "folder",
    "pids": "processes",
    "cpus": "CPUs",
    "tp": "TP",
    "pp": "PP",
    "dp": "DP",
    "fsdp": "FSDP",
    "id": "",
}


_LABELS: Final[Mapping[str, str]] = {
    **{place.pointer: place.label for place in PLACES.values()},
    "/wall_time_s": "Wall time",
    "/program/args": "Arguments",
    "/program/argv": "Command",
    "/program/container/image": "Container image",
    "/program/container/engine": "Container engine",
    "/program/container/mounts": "Container mounts",
    "/program/container/user": "Container user",
    "/checkpoint/folder": "Checkpoint folder",
    "/checkpoint/store": "Checkpoint store",
}
"""Labels of fields whose name alone does not say what they are."""
MOST_HELP: Final = 150
_NULL: Final = re.compile(r"\b(?:null|None)(?=: | for )|\bNull(?=: )")
_SENTENCE: Final = re.compile(r"(?<=[.]) (?=[A-Z`])")


class Kind(StrEnum):
    """How a value is written: in one line, as a choice, or with an entry in each line."""

    TEXT = "text"
    WHOLE = "whole"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    LINES = "lines"
    PAIRS = "pairs"
    OPTIONS = "options"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class FormField:
    """A field. ``default``: what counts where it is empty. ``parts``: the fields of one record of its lines."""

    pointer: str
    kind: Kind
    label: str
    unit: str
    help: str
    default: str
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    parts: tuple["FormField", ...] = field(default=())

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.pointer[1:].split("/"))

    @property
    def is_explained(self) -> bool:
        """Return whether its help says more than its label."""
        return self.help.lower().rstrip(".").removeprefix("the ") != self.label.lower()

    @property
    def html_id(self) -> str:
        return "job" + self.pointer.replace("/", "-")


@dataclass(frozen=True, slots=True)
class Group:
    """Fields under one title. ``is_open``: whether they are shown while none is filled in."""

    title: str
    fields: tuple[FormField, ...]
    is_open: bool


_FIELD_GROUPS: Final[Sequence[tuple[str, tuple[str, ...]]]] = (
    (
        "Program",
        (
            "/tenant_id",
            "/name",
            "/program/bundle",
            "/program/git/url",
            "/program/git/commit",
            "/program/git/secret",
            "/program/launcher",
            "/program/script",
            "/program/args",
            "/program/argv",
            "/program/env",
        ),
    ),
    ("Size and time", ("/shape/nodes", "/shape/gpus_per_node", "/tier", "/wall_time_s")),
    ("Secrets and data", ("/secrets", "/secret_env", "/datasets")),
    ("Outputs", ("/outputs",)),
    ("Interpreter, working folder and container", ("/program",)),
    ("Other sizes", ("/shape",)),
    ("Place and layout", ("/topology", "/layout", "/node_labels")),
    ("Checkpoints", ("/checkpoint",)),
    ("Restarts, faults and budget", ("/restart", "/on_", "/rerun_exit_codes", "/stop_grace_s", "/budget_gpu_hours")),
    ("Limits on each host", ("/limits",)),
    ("Labels and the rest", ("",)),
)
"""Titles, with the beginnings of the pointers under each; the first that fits counts, so that the last has the rest."""
_NUM_OPEN: Final = 2


@functools.cache
def groups() -> Sequence[Group]:
    """Return all fields, in groups."""
    left = list(fields())
    found = []
    for number, (title, beginnings) in enumerate(_FIELD_GROUPS):
        mine = [each for start in beginnings for each in left if _begins(each.pointer, start)]
        left = [each for each in left if each not in mine]
        if mine:
            found.append(Group(title, tuple(dict.fromkeys(mine)), is_open=number < _NUM_OPEN))
    return found


def _begins(pointer: str, start: str) -> bool:
    return pointer == start or pointer.startswith(f"{start}/") or (start.endswith("_") and pointer.startswith(start))


@functools.cache
def fields() -> Sequence[FormField]:
    """Return each field of a submission, in the order of the schema."""
    schema = job_file_schema()
    return tuple(_fields_of(schema, "", schema["$defs"], _WHOLE))


def _fields_of(
    schema: Mapping[str, Any], at: str, definitions: Mapping[str, Any], class_name: str
) -> Iterator[FormField]:
    for name, shape in schema["properties"].items():
        if not at and name in _OF_THE_FILE:
            continue
        found, of_class = _resolved(shape, definitions)
        if "properties" in found:
            yield from _fields_of(found, f"{at}/{name}", definitions, of_class)
        else:
            yield _field(f"{at}/{name}", found, definitions, class_name)


def _resolved(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the one schema of a value, without null and variables, and the class that it names."""
    found, class_name = dict(shape), ""
    while "anyOf" in found or "$ref" in found:
        kept = {str(key): found[key] for key in ("default", "description") if key in found}
        if "$ref" in found:
            class_name = found["$ref"].removeprefix(_DEFINITIONS)
            found = {**definitions[class_name], **kept}
        else:
            choices = [one for one in found["anyOf"] if one.get("type") != "null" and one.get("$ref") != _VARIABLE]
            found = {**choices[0], **kept}
    return found, class_name


def _field(pointer: str, found: Mapping[str, Any], definitions: Mapping[str, Any], class_name: str) -> FormField:
    name = pointer.rpartition("/")[2]
    unit = next((words for ending, words in _UNITS.items() if name.endswith(ending)), "")
    kind = _kind_of(found, definitions)
    least = found.get("minimum", found.get("exclusiveMinimum"))
    return FormField(
        pointer=pointer,
        kind=kind,
        label=_LABELS.get(pointer, _label_of(name, unit)),
        unit=unit,
        help=_help_of(field_text(class_name, name) or found.get("description", "")),
        default=_shown(found.get("default")),
        choices=tuple(found.get("enum", ())),
        least=least,
        most=found.get("maximum"),
        parts=_parts_of(found, definitions) if kind is Kind.RECORDS else (),
    )


def _kind_of(found: Mapping[str, Any], definitions: Mapping[str, Any]) -> Kind:
    if "enum" in found:
        return Kind.CHOICE
    match found["type"]:
        case "integer":
            return Kind.WHOLE
        case "number":
            return Kind.NUMBER
        case "boolean":
            return Kind.FLAG
        case "array":
            return Kind.RECORDS if "properties" in _resolved(found["items"], definitions)[0] else Kind.LINES
        case "object":
            return Kind.OPTIONS if found["additionalProperties"].get("type") == "array" else Kind.PAIRS
        case _:
            return Kind.TEXT


def _parts_of(found: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[FormField, ...]:
    inner, of_class = _resolved(found["items"], definitions)
    return tuple(_fields_of(inner, "", definitions, of_class))


def _label_of(name: str, unit: str) -> str:
    ending = next((ending for ending, words in _UNITS.items() if words == unit), "") if unit else ""
    words = [_ACRONYMS.get(word, word) for word in name.removesuffix(ending).split("_")]
    text = " ".join(word for word in words if word)
    return text[:1].upper() + text[1:]


def _help_of(text: str) -> str:
    """Return a text about a field of JSON for a form, in which null is an empty field: its first sentences."""
    words = _NULL.sub(lambda found: "Empty" if found[0] == "Null" else "empty", text.replace("``", "`"))
    kept = ""
    for sentence in _SENTENCE.split(" ".join(words.split())):
        if kept and len(kept) + len(sentence) > MOST_HELP:
            break
        kept = f"{kept} {sentence}".strip()
    return kept


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default) if isinstance(default, int | float | str) else ""
