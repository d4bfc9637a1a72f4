"""A job's document with the fields that options give in place of its own.

Of options, a mapping is merged field by field, so that ``--env A=1`` replaces one variable. Any other value replaces
the whole field, and a value of ``--set`` always does. A field that cannot stand next to one that was given is taken
out: a script next to a command, a sum of GPUs next to nodes.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from muster.cli.framework.beyond_json import unsaid_by_json
from muster.cli.framework.options import unfit
from muster.cli.framework.yaml_loading import UNREADABLE, load_yaml

_DOT: Final = re.compile(r"(?<!\\)\.")
"""A dot between names; one after a backslash belongs to a name, such as a label's."""
_REPLACED_WHOLE: Final = frozenset({"/layout"})
_EXCLUDED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "/program": {
        "script": ("argv",),
        "argv": ("script", "args"),
        "venv": ("python", "container", "environment"),
        "python": ("venv", "environment"),
        "container": ("venv", "environment"),
        "environment": ("venv", "python", "container"),
    },
    "/shape": {
        "gpus": ("nodes", "gpus_per_node", "ranks_per_node", "min_nodes", "max_nodes"),
        "nodes": ("gpus",),
        "gpus_per_node": ("gpus",),
    },
    "/checkpoint": {"folder": ("store", "credentials"), "store": ("folder",)},
}
"""By mapping: a given field, and the fields of the document that it takes the place of."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``--set FIELD=VALUE``: the names on the way to the field, and its value."""

    names: tuple[str, ...]
    value: Any

    @property
    def pointer(self) -> str:
        return "/" + "/".join(self.names)


def overridden(document: Mapping[str, Any], options: Mapping[str, Any], pointer: str = "") -> dict[str, Any]:
    """Return the document with the options' fields."""
    found = _without_excluded(document, {name: value for name, value in options.items() if value is not None}, pointer)
    for name, value in options.items():
        at = f"{pointer}/{name}"
        before = found.get(name)
        is_merged = isinstance(value, Mapping) and isinstance(before, Mapping) and at not in _REPLACED_WHOLE
        found[name] = overridden(before, value, at) if is_merged and before is not None else value
    return found


def _without_excluded(document: Mapping[str, Any], given: Mapping[str, Any], pointer: str) -> dict[str, Any]:
    excluded = {each for name in given for each in _EXCLUDED.get(pointer, {}).get(name, ())}
    return {name: value for name, value in document.items() if name in given or name not in excluded}


def pointers_of(options: Mapping[str, Any], pointer: str = "") -> Iterator[str]:
    """Yield the pointers of the given fields."""
    for name, value in options.items():
        at = f"{pointer}/{name}"
        if isinstance(value, Mapping) and at not in _REPLACED_WHOLE:
            yield from pointers_of(value, at)
        else:
            yield at


def with_settings(document: Mapping[str, Any], settings: Sequence[Setting]) -> dict[str, Any]:
    """Return the document with each setting's value, whole, at its place."""
    found = dict(document)
    for setting in settings:
        found = _assigned(found, setting, 0)
    return found


def _assigned(at: Any, setting: Setting, depth: int) -> Any:
    name, is_last = setting.names[depth], depth + 1 == len(setting.names)
    if isinstance(at, list):
        if not (name.isascii() and name.isdigit() and int(name) < len(at)):
            words = f"{'.'.join(setting.names[:depth])} is a list of {len(at)}: {name!r} is none of its items, from 0"
            raise unfit("--set", words)
        inner = setting.value if is_last else _assigned(at[int(name)], setting, depth + 1)
        return [inner if number == int(name) else each for number, each in enumerate(at)]
    if not isinstance(at, dict | None):
        raise unfit("--set", f"{'.'.join(setting.names[:depth])} has no fields")
    held = at or {}
    value = setting.value if is_last else _assigned(held.get(name), setting, depth + 1)
    pointer = "".join(f"/{each}" for each in setting.names[:depth])
    return {**_without_excluded(held, {} if value is None else {name: value}, pointer), name: value}


def settings_of(words: Sequence[str]) -> list[Setting]:
    """Return what ``--set FIELD=VALUE`` gives, each value as YAML. Raises Typer's error about the option."""
    found = []
    for each in words:
        place, separator, text = each.partition("=")
        names = tuple(name.replace("\\.", ".") for name in _DOT.split(place))
        if not separator or not all(names):
            raise unfit("--set", f"{each!r} is not FIELD=VALUE, such as shape.nodes=4")
        found.append(Setting(names, _value_of(text, each)))
    return found


def _value_of(text: str, words: str) -> Any:
    try:
        value = load_yaml(text)
        beyond = next(iter(unsaid_by_json(value)), None)
        if beyond is None:
            return json.loads(json.dumps(value))
    except UNREADABLE as error:
        raise unfit("--set", f"the value of {words!r} is no YAML ({error})") from None
    raise unfit("--set", f"the value of {words!r}: {beyond}")
