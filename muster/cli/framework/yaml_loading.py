"""YAML that people write: a key that appears twice in one mapping is an error, and the last does not win."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

TEXT_TAG: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
_YAML_MARKS: Final = frozenset({_MERGE, "tag:yaml.org,2002:value"})
UNREADABLE: Final = (yaml.YAMLError, ValueError, RecursionError)
"""What these functions raise for a text: no YAML, a date that is none, too many levels."""
MOST_VALUES: Final = 1_000_000
"""Most values, with each alias counted as all its values: a kilobyte of aliases can stand for a billion."""


class _EachKeyOnce(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a duplicate key before merge keys (``<<``) are filled in, since a mapping's own keys may override
        merged ones.
        """
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                raise ConstructorError(None, None, f"the key {key.value!r} appears twice: keep one", key.start_mark)
            seen.add((key.tag, key.value))
        return node


@dataclass(frozen=True, slots=True)
class Placed:
    """A document of a text. ``line``: its first line, from 1. ``lines``: the line of each field, by JSON pointer."""

    value: Any
    line: int
    lines: dict[str, int]

    def line_of(self, pointer: str) -> int:
        """Return the line of the field that ``pointer`` names; of one that is missing, that of the field around it."""
        while pointer and pointer not in self.lines:
            pointer = pointer.rpartition("/")[0]
        return self.lines.get(pointer, self.line)


def load_yaml(text: str) -> Any:
    """Return the document. Raises ``yaml.YAMLError``, with line and column, if the text is not valid.

    It is not valid if it is no YAML, has a key twice, or holds more than ``MOST_VALUES`` values.
    """
    loader = _EachKeyOnce(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _require_bounded(node)
        return loader.construct_document(node)
    finally:
        loader.dispose()


def placed_documents(text: str, change: Callable[[yaml.Node], None] | None = None) -> Iterator[Placed]:
    """Yield each document of the text with its lines. Raises ``yaml.YAMLError`` as ``load_yaml`` does.

    ``change`` changes a document's nodes before they become values.
    """
    loader = _EachKeyOnce(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                return
            _require_bounded(node)
            if change is not None:
                change(node)
            lines = dict(_lines_of(node, "", ()))
            yield Placed(loader.construct_document(node), node.start_mark.line + 1, lines)
    finally:
        loader.dispose()


def plain_tag(text: str) -> str:
    """Return the tag of a value that a person writes without quotes: a number's, if it reads as one.

    Marks of YAML itself (``<<``, ``=``), which are no values, are text.
    """
    resolver = yaml.resolver.Resolver()
    tag = str(resolver.resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
    return TEXT_TAG if tag in _YAML_MARKS else tag


def _lines_of(node: yaml.Node, pointer: str, around: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    """Yield the fields below a node with their lines; a key's line is that of its field."""
    if id(node) in around:
        return
    around = (*around, id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield f"{pointer}/{key.value}", key.start_mark.line + 1
                yield from _lines_of(value, f"{pointer}/{key.value}", around)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{pointer}/{number}", value.start_mark.line + 1
            yield from _lines_of(value, f"{pointer}/{number}", around)


def _require_bounded(node: yaml.Node) -> None:
    num_values = _num_values(node, {})
    if num_values > MOST_VALUES:
        words = f"it holds {num_values:,} values, its aliases written out: {MOST_VALUES:,} are the most"
        raise ConstructorError(None, None, words, node.start_mark)


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the values of this node and all below it. One within itself counts once there: the constructor
    refuses it.
    """
    if id(node) not in known:
        known[id(node)] = 1
        if isinstance(node, yaml.SequenceNode):
            known[id(node)] += sum(_num_values(each, known) for each in node.value)
        elif isinstance(node, yaml.MappingNode):
            known[id(node)] += sum(_num_values(key, known) + _num_values(value, known) for key, value in node.value)
    return known[id(node)]
