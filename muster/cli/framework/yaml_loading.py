"""YAML that people write: a key that appears twice in one mapping is an error, and the last does not win."""

from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

_MERGE = "tag:yaml.org,2002:merge"
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


def load_yaml(text: str) -> Any:
    """Return the document. Raises ``yaml.YAMLError``, with line and column, if the text is not valid.

    It is not valid if it is no YAML, has a key twice, or holds more than ``MOST_VALUES`` values.
    """
    loader = _EachKeyOnce(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        num_values = _num_values(node, {})
        if num_values > MOST_VALUES:
            words = f"it holds {num_values:,} values, its aliases written out: {MOST_VALUES:,} are the most"
            raise ConstructorError(None, None, words, node.start_mark)
        return loader.construct_document(node)
    finally:
        loader.dispose()


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
