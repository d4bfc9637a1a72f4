"""The form of a job: the job that its texts make, the texts that make a job, and faults by their fields."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.strict_json import read_model
from console.job_fields import FormField, Group, Kind, fields, groups
from console.plan_form import finite, is_of, whole
from muster.domain.errors import FieldFault, ValidationFailedError
from muster.domain.job.placement_options import labels_of
from muster.domain.job.submission import JobSubmission

MAX_DEPTH: Final = 8
_QUOTED: Final = re.compile(r"`([\w.]+)`")
_YES_AND_NO: Final[Mapping[str, bool]] = {"yes": True, "no": False}
_LONG: Final = frozenset({Kind.LINES, Kind.PAIRS, Kind.OPTIONS, Kind.RECORDS})


def texts_in(form: Mapping[str, str]) -> dict[str, str]:
    """Return the text of each field of the form that is one of a job, by its pointer."""
    return {each.pointer: _one_kind_of_line_end(form.get(each.pointer, ""), each) for each in fields()}


def _one_kind_of_line_end(text: str, field: FormField) -> str:
    return text.replace("\r\n", "\n").strip("\n") if field.kind in _LONG else text.strip()


def document_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the submission with the fields that are filled in.

    Raises:
        ValidationFailedError: with each text that cannot be read, at the pointer of its field.
    """
    document: dict[str, Any] = {"program": {}}
    faults = []
    for field in fields():
        if not texts[field.pointer].strip():
            continue
        try:
            value = _read(field, texts[field.pointer])
        except ValueError as fault:
            faults.append(FieldFault(field.pointer, "unreadable", str(fault)))
            continue
        at = document
        for part in field.path[:-1]:
            at = at.setdefault(part, {})
        at[field.path[-1]] = value
    if faults:
        raise ValidationFailedError("the form cannot be read", faults=tuple(faults))
    return document


def submission_of(document: Mapping[str, Any]) -> JobSubmission:
    """Return the job. Raises ``ValidationFailedError``: no job is like that."""
    return read_model(json.dumps(document).encode(), JobSubmission, max_depth=MAX_DEPTH)


def _read(field: FormField, text: str) -> Any:
    """Return the value of a text. Raises ``ValueError`` with what is accepted."""
    match field.kind:
        case Kind.WHOLE:
            return whole(text)
        case Kind.NUMBER:
            return _number(text)
        case Kind.FLAG:
            return _flag(text)
        case Kind.LINES:
            return _lines(text)
        case Kind.PAIRS:
            return _pairs(_lines(text))
        case Kind.OPTIONS:
            return labels_of(line.strip() for line in _lines(text))
        case Kind.RECORDS:
            return [_record(field, line) for line in _lines(text)]
        case _:
            return text


def _number(text: str) -> float:
    number = finite(text, "number, such as 3600")
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _flag(text: str) -> bool:
    if text not in _YES_AND_NO:
        raise ValueError(f"{text!r} is neither yes nor no")
    return _YES_AND_NO[text]


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip()]


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator or not name.strip():
            raise ValueError(f"{line!r} is not NAME=VALUE")
        if name.strip() in found:
            raise ValueError(f"{name.strip()} appears twice")
        found[name.strip()] = value
    return found


def _record(field: FormField, line: str) -> dict[str, Any]:
    """Return the record of a line of ``field=value`` words."""
    known = {part.path[0]: part for part in field.parts}
    found: dict[str, Any] = {}
    for word in _words(line):
        name, separator, value = word.partition("=")
        if not separator or name not in known:
            raise ValueError(f"{word!r} is not FIELD=VALUE with a field of: {', '.join(known)}")
        if name in found:
            raise ValueError(f"{name} appears twice in a line")
        found[name] = _read(known[name], value)
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        raise ValueError(f"a quotation is not closed: {line}") from None


def texts_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that make a submission. What no text can hold, such as a line break in a line, is as written.

    A value that is not there, or null, is an empty text.
    """
    return {field.pointer: _text_in(document, field) for field in fields()}


def _text_in(document: Mapping[str, Any], field: FormField) -> str:
    *part, _ = field.path
    if part and _value_at(document, part) == {}:
        return field.default  # a layout of one rank: from empty texts alone there would be none
    return _written(field, _value_at(document, field.path))


def _value_at(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    at: Any = document
    for part in path:
        at = at.get(part) if isinstance(at, Mapping) else None
    return at


def _written(field: FormField, value: Any) -> str:
    if value is None:
        return ""
    match field.kind:
        case Kind.FLAG:
            return "yes" if value else "no"
        case Kind.LINES:
            return "\n".join(map(str, value))
        case Kind.PAIRS:
            return "\n".join(f"{name}={text}" for name, text in value.items())
        case Kind.OPTIONS:
            return "\n".join(f"{name}={'|'.join(texts)}" for name, texts in value.items())
        case Kind.RECORDS:
            return "\n".join(_record_text(field, one) for one in value)
        case _:
            return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _record_text(field: FormField, record: Mapping[str, Any]) -> str:
    texts = ((part.path[0], _written(part, record.get(part.path[0]))) for part in field.parts)
    return " ".join(
        shlex.quote(f"{name}={text}") if text.split() != [text] else f"{name}={text}" for name, text in texts if text
    )


def is_kept(document: Mapping[str, Any]) -> bool:
    """Return whether the form's texts make this very document; else a line break or the like would be lost."""
    try:
        made = submission_of(document_of(texts_of(document)))
    except ValidationFailedError:
        return False
    return made.spec == submission_of(document).spec


def faults_by_field(error: ValidationFailedError) -> dict[str, list[str]]:
    """Return what is wrong by the pointer of the field that it concerns; by "" what concerns no field."""
    found: dict[str, list[str]] = {}
    for fault in error.faults:
        field = _field_of(fault)
        words = _labelled(fault.detail)
        found.setdefault("" if field is None else field.pointer, []).append(words)
    if not found:
        found[""] = [error.detail]
    return found


def _field_of(fault: FieldFault) -> FormField | None:
    """Return the field of the fault, or of a rule about several the first that its words name, else the first."""
    inner = [each for each in fields() if is_of(fault.pointer, each.pointer)]
    if inner:
        return inner[0]
    several = [each for each in fields() if fault.pointer not in {"", "/"} and is_of(each.pointer, fault.pointer)]
    named = [each for name in _QUOTED.findall(fault.detail) for each in several if each.path[-1] == name.split(".")[-1]]
    return next(iter([*named, *several]), None)


def _labelled(detail: str) -> str:
    """Return the words with the labels of the fields that they quote."""
    labels = {each.path[-1]: each.label for each in fields()}
    words = _QUOTED.sub(lambda found: f"“{labels[found[1]]}”" if found[1] in labels else found[1], detail)
    return words.replace("`", "")


def unfolded(texts: Mapping[str, str], faults: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the titles of the groups that are shown unfolded: some always, others with a text or a fault in them."""

    def has_content(group: Group) -> bool:
        return any(texts[each.pointer] or each.pointer in faults for each in group.fields)

    return frozenset(group.title for group in groups() if group.is_open or has_content(group))
