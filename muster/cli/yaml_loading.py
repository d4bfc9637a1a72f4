"""YAML as people write it by hand: a key that stands twice in one mapping is a mistake, not the last word."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError

_MERGE = "tag:yaml.org,2002:merge"


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
    """Raises ``yaml.YAMLError``: it is none, or a mapping has a key twice; says line and column."""
    return yaml.load(text, _EachKeyOnce)  # noqa: S506  # a safe loader, with one rule more
