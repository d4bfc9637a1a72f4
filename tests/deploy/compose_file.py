"""`docker-compose.yml` as Compose reads it: anchors merged, variables put in, each service with what it is made of."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
COMPOSE_FILE: Final = ROOT / "docker-compose.yml"
_VARIABLE: Final = re.compile(r"\$\{(?P<name>[A-Z_]+)(?:(?P<operator>:?[-?])(?P<words>[^}]*))?\}|\$(?P<dollar>\$)")


class RefusedError(Exception):
    """A variable that must be set is not; says the file's own words."""


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    table: Mapping[str, Any]

    @property
    def argv(self) -> list[str]:
        """Return entry point and command; without an entry point, our images' own."""
        entrypoint = self.table.get("entrypoint", ["muster"] if self.is_ours else [])
        return [*entrypoint, *self.table.get("command", [])]

    @property
    def is_ours(self) -> bool:
        return str(self.table["image"]).startswith("muster-")

    @property
    def is_one_shot(self) -> bool:
        return self.table.get("restart") == "no" and not self.table.get("profiles")

    @property
    def environment(self) -> dict[str, str]:
        return {name: str(value) for name, value in self.table.get("environment", {}).items()}

    @property
    def health_command(self) -> list[str] | None:
        test = self.table.get("healthcheck", {}).get("test")
        return None if test is None else test[1:]

    @property
    def needs(self) -> dict[str, str]:
        """Service → condition."""
        return {name: need["condition"] for name, need in self.table.get("depends_on", {}).items()}

    @property
    def mounts(self) -> dict[str, tuple[str, bool]]:
        """Path in the container → the volume's name and whether it may be written."""
        parts = (str(text).split(":") for text in self.table.get("volumes", []))
        return {target: (source, mode != ["ro"]) for source, target, *mode in parts}


def substituted(text: str, variables: Mapping[str, str]) -> str:
    """Raises RefusedError for ``${X:?words}`` without X."""

    def value(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        given, operator = variables.get(match["name"]), match["operator"] or "-"
        if given or (given is not None and not operator.startswith(":")):
            return given
        if operator.endswith("?"):
            raise RefusedError(f"{match['name']} {match['words']}")
        return match["words"] or ""

    return _VARIABLE.sub(value, text)


def read_compose(variables: Mapping[str, str], path: Path = COMPOSE_FILE) -> dict[str, Any]:
    """The document with every variable put in, as Compose does it: within values, after parsing."""
    document: dict[str, Any] = _filled(yaml.safe_load(path.read_text(encoding="utf-8")), variables)
    return document


def _filled(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, variables) for value in node]
    return substituted(node, variables) if isinstance(node, str) else node


def services_of(document: Mapping[str, Any]) -> dict[str, Service]:
    return {name: Service(name, table) for name, table in document["services"].items()}


def in_order(services: Mapping[str, Service]) -> list[Service]:
    """Each after what it needs. Raises ValueError where that goes in a circle."""
    ordered: list[Service] = []
    while len(ordered) < len(services):
        done = {service.name for service in ordered}
        ready = [each for name, each in services.items() if name not in done and done >= each.needs.keys()]
        if not ready:
            raise ValueError(f"a circle: {sorted(services.keys() - done)}")
        ordered += ready
    return ordered
