"""Variables of a job file: ``${name}`` in its values, filled in before they are read. Nothing is run or looked up.

A value without quotes is read as if the variable's text had been written there: ``nodes: ${nodes}`` with 4 is a
number. In quotes it is text. ``$${name}`` is the text ``${name}``. Keys have no variables.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import yaml

from muster.cli.framework.document_files import unreadable
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.options import unfit
from muster.cli.framework.yaml_loading import TEXT_TAG, UNREADABLE, placed_documents, plain_tag
from muster.domain.job.file_schema import VARIABLE_NAME, VARIABLES

_NAME: Final = re.compile(VARIABLE_NAME)
_OPEN: Final = re.compile(r"\$+\{")
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Value:
    """A variable's text. ``is_quoted``: it was written in quotes, so it is text where it stands alone too."""

    text: str
    is_quoted: bool = False


@dataclass(frozen=True)
class GivenVariables:
    """Values from the command line. ``shared``: from ``--vars``, of which a file may use some."""

    own: Mapping[str, Value] = field(default_factory=dict)
    shared: Mapping[str, Value] = field(default_factory=dict)


def given_variables(words: Sequence[str], files: Sequence[Path]) -> GivenVariables:
    """Return the values of ``--var`` and ``--vars``. Raises ``CommandError`` or Typer's error about the option."""
    shared: dict[str, Value] = {}
    for path in files:
        shared |= _values_in(path)
    return GivenVariables(dict(_value_of(each) for each in words), shared)


def _value_of(words: str) -> tuple[str, Value]:
    name, separator, text = words.partition("=")
    if not _NAME.fullmatch(name):
        raise unfit("--var", f"{words!r} is not NAME=VALUE; a name has letters, digits and underscores")
    if separator:
        return name, Value(text)
    if name not in os.environ:
        raise unfit("--var", f"{name} stands alone, so it is the environment's, where it is not set: give {name}=VALUE")
    return name, Value(os.environ[name])


def _values_in(path: Path) -> dict[str, Value]:
    found: dict[str, Value] = {}

    def read(node: yaml.Node) -> None:
        found.update((name, value) for name, value in _declared(str(path), node, "the whole") if value is not None)

    try:
        num_documents = sum(1 for _ in placed_documents(path.read_text(encoding="utf-8"), read))
    except (OSError, *UNREADABLE) as error:
        raise unreadable(f"--vars {path}", error, "It is a mapping of names to values.") from error
    if num_documents > 1:
        raise CommandError(f"--vars {path}: holds {num_documents} documents", "Keep one.", Exit.INVALID)
    return found


def _declared(name: str, node: yaml.Node, place: str) -> Iterator[tuple[str, Value | None]]:
    """Yield the variables of a mapping; None: it has no value yet."""
    advice = "Write NAME: VALUE, a text or number each."
    if not isinstance(node, yaml.MappingNode):
        raise CommandError(f"{name}: {place} is no mapping of names to values", advice, Exit.INVALID)
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or not _NAME.fullmatch(key.value):
            words = f"{name}, line {line}: a variable's name has letters, digits and underscores"
            raise CommandError(words, "It begins with a letter or underscore.", Exit.INVALID)
        if not isinstance(value, yaml.ScalarNode):
            words = f"{name}, line {line}: the variable {key.value} is a list or mapping"
            raise CommandError(words, advice, Exit.INVALID)
        is_missing = value.style is None and value.tag == _NULL
        yield key.value, None if is_missing else Value(value.value, is_quoted=value.style is not None)


class Filling:
    """The variables of one job file, filled into its nodes. ``name``: the file's, for errors."""

    def __init__(self, name: str, given: GivenVariables) -> None:
        self._name = name
        self._given = given
        self._values: dict[str, Value] = {}
        self._known: set[str] = set()
        self._missing: dict[str, list[int]] = {}
        self._seen: set[int] = set()

    def __call__(self, root: yaml.Node) -> None:
        """Fill in a document's variables and take their section away.

        Raises:
            CommandError: variables without a value, all of them; a given one that the file does not have.
        """
        declared = dict(self._section_of(root))
        self._known = set(declared)
        defaults = {name: value for name, value in declared.items() if value is not None}
        self._values = {**defaults, **self._given.shared, **self._given.own}
        self._fill(root)
        self._require_known()
        if self._missing:
            raise self._missing_error()

    def _section_of(self, root: yaml.Node) -> Iterator[tuple[str, Value | None]]:
        if not isinstance(root, yaml.MappingNode):
            return
        kept = []
        for key, value in root.value:
            if isinstance(key, yaml.ScalarNode) and key.value == VARIABLES:
                yield from _declared(self._name, value, f"`{VARIABLES}`")
            else:
                kept.append((key, value))
        root.value = kept

    def _fill(self, node: yaml.Node) -> None:
        """Fill in what is below a node, each once: an alias stands for a node that is filled already."""
        if id(node) in self._seen:
            return
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for _, value in node.value:
                self._fill(value)
        elif isinstance(node, yaml.SequenceNode):
            for value in node.value:
                self._fill(value)
        elif isinstance(node, yaml.ScalarNode) and _OPEN.search(node.value):
            self._fill_scalar(node)

    def _fill_scalar(self, node: yaml.ScalarNode) -> None:
        line = node.start_mark.line + 1
        parts = list(self._parts(node.value, line))
        node.value = "".join(part.text for part in parts)
        if node.style is None:
            is_text = len(parts) == 1 and parts[0].is_quoted
            node.tag = TEXT_TAG if is_text else plain_tag(node.value)

    def _parts(self, text: str, line: int) -> Iterator[Value]:
        """Yield the text's parts, each variable as one."""
        at = 0
        while (opened := _OPEN.search(text, at)) is not None:
            if before := text[at : opened.start()]:
                yield Value(before)
            at = opened.end()
            if len(opened[0]) > len("${"):
                yield Value(opened[0][1:], is_quoted=True)
                continue
            inside, closed, _ = text[at:].partition("}")
            if not closed or not _NAME.fullmatch(inside):
                shown = text[opened.start() : opened.start() + 40]
                words = f"{self._name}, line {line}: {shown!r} begins with no variable such as ${{name}}"
                raise CommandError(words, "Write $${ for the text ${.", Exit.INVALID)
            at += len(inside) + 1
            yield self._value_of(inside, line)
        if after := text[at:]:
            yield Value(after)

    def _value_of(self, name: str, line: int) -> Value:
        self._known.add(name)
        if name not in self._values:
            self._missing.setdefault(name, []).append(line)
            return Value("")
        return self._values[name]

    def _missing_error(self) -> CommandError:
        said = ", ".join(
            f"{name} (line {', '.join(str(line) for line in sorted(set(lines)))})"
            for name, lines in sorted(self._missing.items())
        )
        have = "1 variable has" if len(self._missing) == 1 else f"{len(self._missing)} variables have"
        first = min(self._missing)
        advice = f"Give each: --var {first}=…, or in a file by --vars. $${{{first}}} is the text ${{{first}}}."
        return CommandError(f"{self._name}: {have} no value: {said}", advice, Exit.INVALID)

    def _require_known(self) -> None:
        unknown = sorted(self._given.own.keys() - self._known)
        if not unknown:
            return
        near = get_close_matches(unknown[0], self._known, n=1)
        there = f"it has {', '.join(sorted(self._known))}" if self._known else "it has none"
        advice = f"Did you mean {near[0]}?" if near else "Leave it out, or write ${" + unknown[0] + "} into the file."
        raise CommandError(f"--var {unknown[0]}: {self._name} has no such variable; {there}", advice, Exit.USAGE)
