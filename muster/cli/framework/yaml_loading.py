"""YAML as people write it by hand: a key that stands twice in one mapping is a mistake, not the last word."""

from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError

_MERGE = "tag:yaml.org,2002:merge"
MOST_VALUES: Final = 1_000_000
"""With each alias counted as all that it stands for: a kilobyte of them can stand for a billion."""


class _EachKeyOnce(yaml.SafeLoader):
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Before merge keys (``<<``) are filled in: what stands in a mapping itself may override what they bring."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set[tuple[str, str]]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                raise ConstructorError(None, None, f"the key {key.value!r} stands twice: keep one", key.start_mark)
            seen.add((key.tag, key.value))
        return node


def load_yaml(text: str) -> Any:
    """Raises ``yaml.YAMLError``: it is none, has a key twice, or is more than ``MOST_VALUES``; says line and column."""
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
    """Of this node and all below it. One that is within itself counts once there: who reads it refuses it."""
    if id(node) not in known:
        known[id(node)] = 1
        if isinstance(node, yaml.SequenceNode):
            known[id(node)] += sum(_num_values(each, known) for each in node.value)
        elif isinstance(node, yaml.MappingNode):
            known[id(node)] += sum(_num_values(key, known) + _num_values(value, known) for key, value in node.value)
    return known[id(node)]
