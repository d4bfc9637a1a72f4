"""The picture and the table of the layers in ARCHITECTURE.md agree with .importlinter."""

import configparser
import json
from itertools import pairwise
from typing import Any

import pytest

from tools import layers_picture, layers_table
from tools.layers_picture import DATA, draw
from tools.layers_table import BEGIN, CONTRACTS, END, Contract, contracts_of, put_in, table_of

PICTURED: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
ROWS = {box["module"]: number for number, row in enumerate(PICTURED["rows"]) for box in row["boxes"]}
WRITTEN = """\
[importlinter]
root_packages =
    upper
    lower

[importlinter:contract:order]
name = imports go down
type = layers
layers =
    upper
    left | right
    (lower)

[importlinter:contract:pure]
name = lower is pure
type = forbidden
source_modules =
    lower
    lower.two # why
    lower.three
    lower.four
forbidden_modules =
    sqlalchemy
"""


def test_the_picture_is_what_its_data_states() -> None:
    assert layers_picture.main(["--check"]) == 0, "run `make layers` and commit docs/pictures/layers.svg"


def test_the_table_is_what_the_contracts_state() -> None:
    assert layers_table.main(["--check"]) == 0, "run `make layers` and commit ARCHITECTURE.md"


def test_each_root_package_is_in_the_picture() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(CONTRACTS)
    roots = set(parser["importlinter"]["root_packages"].split())
    assert roots - {module.split(".")[0] for module in ROWS} == set()


def test_the_picture_has_the_order_of_each_contract_of_layers() -> None:
    for contract in contracts_of(CONTRACTS.read_text(encoding="utf-8")):
        known = [[module for module in _whole(contract, layer) if module in ROWS] for layer in contract.layers]
        for upper, lower in pairwise(layer for layer in known if layer):
            assert [(one, two) for one in upper for two in lower if ROWS[one] >= ROWS[two]] == [], contract.name


def _whole(contract: Contract, layer: tuple[str, ...]) -> list[str]:
    """The modules of ``layer`` with the package that the contract is about, if it names one."""
    return [".".join([*contract.modules[:1], module]) for module in layer]


def test_a_contract_is_read_with_its_layers_and_modules() -> None:
    order, pure = contracts_of(WRITTEN)
    assert order == Contract("imports go down", "layers", (("upper",), ("left", "right"), ("lower",)), ())
    assert pure.modules == ("lower", "lower.two", "lower.three", "lower.four")


def test_layers_are_reported_from_the_top_and_other_rules_by_their_names() -> None:
    table = table_of(contracts_of(WRITTEN))
    assert table.startswith(
        "### Imports go down\n\n| | layer, from the top |\n|---|---|\n| 1 | `upper` |\n| 2 | `left`"
    )
    assert "| lower is pure | `lower`, `lower.two`, `lower.three`, `lower.four` |" in table


def test_what_is_around_the_table_stays() -> None:
    page = put_in(f"before\n{BEGIN}\nold\n{END}\nafter\n", "| new |")
    assert page == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    assert put_in(page, "| new |") == page


def test_a_page_without_the_comments_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks a line"):
        put_in("no comments", "| new |")


def test_a_text_in_the_picture_cannot_break_it() -> None:
    box = {"module": "a<b", "caption": "x & y", "from": 0, "to": 1}
    picture = draw({"title": "t", "grid": 1, "rows": [{"boxes": [box]}]})
    assert "a&lt;b" in picture
    assert "x &amp; y" in picture
