"""Writer of the table of import layers in ARCHITECTURE.md (``make layers``), from the contracts in .importlinter.

Run as ``python -m tools.layers_table``. With ``--check`` nothing is written, and the exit is 1 where the table is not
what the contracts say. The table stands between two comments; what is around it is written by hand.
"""

import configparser
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CONTRACTS: Final = ROOT / ".importlinter"
PAGE: Final = ROOT / "ARCHITECTURE.md"
BEGIN: Final = "<!-- layers: written by `make layers` from .importlinter -->"
END: Final = "<!-- end of layers -->"
_MODULES_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Contract:
    """One contract of import-linter. ``layers``: from the top, each the modules at the same level."""

    name: str
    kind: str
    layers: tuple[tuple[str, ...], ...]
    modules: tuple[str, ...]


def contracts_of(text: str) -> list[Contract]:
    """Return the contracts of a text in the form of .importlinter, in their order."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    sections = [parser[name] for name in parser.sections() if name.startswith("importlinter:contract:")]
    return [
        Contract(
            section["name"],
            section["type"],
            tuple(_layers(section["layers"])) if section["type"] == "layers" else (),
            tuple(_lines(section.get("source_modules") or section.get("modules") or section.get("containers") or "")),
        )
        for section in sections
    ]


def table_of(contracts: list[Contract]) -> str:
    """Return the contracts as tables: the layers from the top, then what else holds."""
    return "\n\n".join([*_layer_tables(contracts), *_other_rules(contracts)])


def put_in(page: str, table: str) -> str:
    """Return ``page`` with ``table`` between the two comments. Raises ValueError where it lacks one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"ARCHITECTURE.md lacks a line {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _layer_tables(contracts: list[Contract]) -> Iterator[str]:
    for contract in contracts:
        if contract.layers:
            rows = [f"| {number} | {_code(layer)} |" for number, layer in enumerate(contract.layers, 1)]
            within = f" in {_code(contract.modules)}" if contract.modules else ""
            head = f"### {contract.name[:1].upper()}{contract.name[1:]}"
            yield "\n".join([head, "", f"| | layer{within}, from the top |", "|---|---|", *rows])


def _other_rules(contracts: list[Contract]) -> Iterator[str]:
    rows = [f"| {contract.name} | {_code(contract.modules)} |" for contract in contracts if not contract.layers]
    if rows:
        yield "\n".join(["### Other rules", "", "| rule | holds for |", "|---|---|", *rows])


def _code(modules: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{module}`" for module in modules[:_MODULES_SHOWN])
    return shown + (f" and {len(modules) - _MODULES_SHOWN} more" if len(modules) > _MODULES_SHOWN else "")


def _layers(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the layers: a line is a layer; ``|`` and ``:`` part modules at the same level; brackets mark an optional
    one.
    """
    for line in _lines(text):
        yield tuple(part.strip(" ()") for part in line.replace(":", "|").split("|"))


def _lines(text: str) -> list[str]:
    stripped = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in stripped if line]


def main(arguments: list[str]) -> int:
    """Write the table into the page, or say whether it is up to date."""
    page = PAGE.read_text(encoding="utf-8")
    text = put_in(page, table_of(contracts_of(CONTRACTS.read_text(encoding="utf-8"))))
    if "--check" not in arguments:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if page == text:
        return 0
    sys.stderr.write("the layers in ARCHITECTURE.md differ from .importlinter: run `make layers` and commit it.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
