"""A job as a file, which ``muster job submit -f`` reads as an equal job: its document, and its text as YAML."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml
from pydantic import ValidationError

from muster.domain.job.spec import JobSpec

_OPEN: Final = re.compile(r"\$+\{")
_TEXT_TAG: Final = "tag:yaml.org,2002:str"


def file_document(spec: Mapping[str, Any], *, is_whole: bool = False) -> dict[str, Any]:
    """Return the document of a file for the specification, as a server answers it.

    A field with its default is left out, except for size and tier. A size as a sum of GPUs stays one. If the
    specification has a field that this release does not know, every field is kept.
    """
    try:
        known = JobSpec.model_validate_json(json.dumps(spec))
    except ValidationError:
        return dict(_escaped(spec))
    changed = dict(spec) if is_whole else known.model_dump(mode="json", exclude_defaults=True)
    shape = changed.get("shape", {})
    if known.shape.gpus is None:
        shape = {"nodes": known.shape.nodes, "gpus_per_node": known.shape.gpus_per_node, **shape}
    shown = {"name": known.name, "tier": known.tier, "shape": shape}
    return dict(_escaped({**shown, **changed, "shape": shape}))


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return the document as YAML, every text of which reads as itself."""

    class Dumper(yaml.SafeDumper):
        def represent_str(self, text: str) -> Any:
            """Write a text with anything but printable ASCII in double quotes, whose escapes read as they were."""
            is_plain = text.isascii() and text.isprintable()
            return self.represent_scalar(_TEXT_TAG, text, style=None if is_plain else '"')

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # the base's signature
            return True

    Dumper.add_representer(str, Dumper.represent_str)
    text = yaml.dump(dict(document), Dumper=Dumper, sort_keys=False, allow_unicode=False, width=1 << 30)
    return str(text).rstrip("\n")


def _escaped(value: Any) -> Any:
    """Return the value with ``${`` in its texts written so that it is no variable."""
    if isinstance(value, str):
        return _OPEN.sub(lambda found: "$" + found[0], value)
    if isinstance(value, Mapping):
        return {name: _escaped(each) for name, each in value.items()}
    return [_escaped(each) for each in value] if isinstance(value, list | tuple) else value
