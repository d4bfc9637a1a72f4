"""Breaking changes of a new version of an OpenAPI document for clients of the old one: pure, over two documents.

Answers may gain and inputs may loosen. An answer breaks if it loses an operation, a status, a field, a field's
certainty (it was always there, it was never null), a word of an enumeration, or a type. An input breaks by new demands:
a parameter or field that is required or removed, a word that is no longer accepted, a type.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

Document = dict[str, Any]
Schema = dict[str, Any]
DOCUMENT_METHODS: Final = ("get", "put", "post", "delete", "patch")
_DEEPEST: Final = 12


@dataclass(frozen=True, slots=True)
class Break:
    """One breaking change. ``operation``: such as ``GET /v1/jobs``. ``what``: the field or parameter. ``words``: the
    change.
    """

    operation: str
    what: str
    words: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.what} {self.words}".replace(":  ", ": ")


def breaking_changes(old: Document, new: Document) -> list[Break]:
    """Return each breaking change once, in the order of the old document."""
    found: dict[Break, None] = {}
    for path, method, operation in _operations(old):
        name = f"{method.upper()} {path}"
        successor = new["paths"].get(path, {}).get(method)
        if successor is None:
            found[Break(name, "", "was removed")] = None
            continue
        for what, words in _of_operation(_Pair(old, new), operation, successor):
            found[Break(name, what, words)] = None
    return list(found)


def unnamed(breaks: list[Break], changelog: str) -> list[Break]:
    """Return the breaks without a changelog line that has "Breaking", the operation and the last part of what broke."""
    lines = [line for line in _paragraphs(changelog) if "breaking" in line.lower()]
    return [one for one in breaks if not any(_names(line, one) for line in lines)]


def _names(line: str, one: Break) -> bool:
    return one.operation in line and one.what.split("/")[-1].strip("`") in line


def _paragraphs(text: str) -> Iterator[str]:
    """Yield a list's entry with its continuation lines, as one."""
    entry = ""
    for line in text.splitlines():
        if line.startswith("  ") and entry:
            entry += " " + line.strip()
            continue
        if entry:
            yield entry
        entry = line.strip()
    yield entry


@dataclass(frozen=True, slots=True)
class _Pair:
    old: Document
    new: Document

    def resolved(self, before: Schema, after: Schema) -> tuple[Schema, Schema]:
        return _resolved(self.old, before), _resolved(self.new, after)


def _operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, operations in document["paths"].items():
        for method in DOCUMENT_METHODS:
            if method in operations:
                yield path, method, operations[method]


def _of_operation(pair: _Pair, before: Document, after: Document) -> Iterator[tuple[str, str]]:
    yield from _of_parameters(pair, before, after)
    if before.get("x-permission") != after.get("x-permission"):
        yield "permission", f"was {before.get('x-permission')}, is {after.get('x-permission')}"
    asked, takes = _body(before), _body(after)
    if takes is not None and asked is None and after["requestBody"].get("required"):
        yield "body", "is required now"
    if asked is not None and takes is not None:
        yield from _of_input(pair, asked, takes, "body")
    for status, response in before["responses"].items():
        if not status.startswith("2"):
            continue
        successor = after["responses"].get(status)
        if successor is None:
            yield status, "is no longer answered"
            continue
        for media_type, content in response.get("content", {}).items():
            given = successor.get("content", {}).get(media_type)
            if given is None:
                yield media_type, "is no longer answered"
            else:
                yield from _of_answer(pair, content.get("schema", {}), given.get("schema", {}), "answer")


def _of_parameters(pair: _Pair, before: Document, after: Document) -> Iterator[tuple[str, str]]:
    had = {(each["in"], each["name"]): each for each in before.get("parameters", ())}
    has = {(each["in"], each["name"]): each for each in after.get("parameters", ())}
    for key, parameter in had.items():
        if key not in has:
            yield f"`{key[1]}`", "is no longer a parameter"
        else:
            yield from _of_input(pair, parameter["schema"], has[key]["schema"], f"`{key[1]}`")
    for key, parameter in has.items():
        if parameter.get("required") and not had.get(key, {}).get("required"):
            yield f"`{key[1]}`", "is required now"


def _of_answer(pair: _Pair, before: Schema, after: Schema, at: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    before, after = pair.resolved(before, after)
    yield from _of_kinds(_kinds(pair.old, before), _kinds(pair.new, after), at, is_answer=True)
    yield from _of_words(_words(pair.old, before), _words(pair.new, after), at)
    if depth < _DEEPEST:
        for name, schema in _fields(pair.old, before).items():
            inner = f"{at}/`{name}`"
            if name not in _fields(pair.new, after):
                yield inner, "was removed"
                continue
            if name in _required(pair.old, before) and name not in _required(pair.new, after):
                yield inner, "may be missing now"
            yield from _of_answer(pair, schema, _fields(pair.new, after)[name], inner, depth + 1)
        if (items := _items(pair.old, before)) is not None and (successor := _items(pair.new, after)) is not None:
            yield from _of_answer(pair, items, successor, at, depth + 1)


def _of_input(pair: _Pair, before: Schema, after: Schema, at: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    before, after = pair.resolved(before, after)
    yield from _of_kinds(_kinds(pair.new, after), _kinds(pair.old, before), at, is_answer=False)
    yield from _of_words(_words(pair.old, before), _words(pair.new, after), at)
    if depth < _DEEPEST:
        taken = _fields(pair.new, after)
        for name, schema in _fields(pair.old, before).items():
            if name not in taken:
                yield f"{at}/`{name}`", "is no longer taken"
            else:
                yield from _of_input(pair, schema, taken[name], f"{at}/`{name}`", depth + 1)
        for name in sorted(_required(pair.new, after) - _required(pair.old, before)):
            yield f"{at}/`{name}`", "is required now"
        if (items := _items(pair.old, before)) is not None and (successor := _items(pair.new, after)) is not None:
            yield from _of_input(pair, items, successor, at, depth + 1)


def _of_kinds(documented: set[str], given: set[str], at: str, *, is_answer: bool) -> Iterator[tuple[str, str]]:
    """Yield a break if ``given`` exceeds the types of the old document; without any there, every type is allowed."""
    if documented and (beyond := given - documented):
        kinds = ", ".join(sorted(beyond))
        yield at, f"may be {kinds} now" if is_answer else f"may no longer be {kinds}"


def _of_words(before: set[str], after: set[str], at: str) -> Iterator[tuple[str, str]]:
    if after:
        for word in sorted(before - after):
            yield f"{at}/`{word}`", "is no longer among the words"


def _body(operation: Document) -> Schema | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else content.get("schema", {})


def _resolved(document: Document, schema: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        schema = found
    return schema


def _branches(document: Document, schema: Schema) -> Iterator[Schema]:
    """Yield the schema itself, or each of its alternatives."""
    schema = _resolved(document, schema)
    alternatives = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if not alternatives:
        yield schema
    for each in alternatives:
        yield from _branches(document, each)


def _kinds(document: Document, schema: Schema) -> set[str]:
    """Return the JSON types that it may be; none if it may be anything."""
    kinds: set[str] = set()
    for branch in _branches(document, schema):
        named = branch.get("type")
        if named is None and not branch.get("enum") and "const" not in branch:
            return set()
        kinds |= {"string"} if named is None else {named} if isinstance(named, str) else set(named)
    return kinds | ({"integer"} if "number" in kinds else set())


def _words(document: Document, schema: Schema) -> set[str]:
    branches = list(_branches(document, schema))
    return {str(word) for branch in branches for word in [*branch.get("enum", ()), *_const(branch)]}


def _const(branch: Schema) -> list[Any]:
    return [branch["const"]] if "const" in branch else []


def _fields(document: Document, schema: Schema) -> dict[str, Schema]:
    return {
        name: field for branch in _branches(document, schema) for name, field in branch.get("properties", {}).items()
    }


def _required(document: Document, schema: Schema) -> set[str]:
    return {name for branch in _branches(document, schema) for name in branch.get("required", ())}


def _items(document: Document, schema: Schema) -> Schema | None:
    return next((branch["items"] for branch in _branches(document, schema) if "items" in branch), None)
