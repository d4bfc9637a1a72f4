"""Every row of the XID catalogue against ``xid_rows.txt``: class, action, scope, the branch that adds an XID 154."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from health.xid.catalogue import CATALOGUE, XidClass
from health.xid.recovery import Action

ROWS: Final = Path(__file__).with_name("xid_rows.txt")
KNOWN_CODES: Final = range(1, 174)
CLASSES: Final = {
    "I": XidClass.IGNORE,
    "A": XidClass.RESTART_APP,
    "R": XidClass.RESET_GPU,
    "V": XidClass.RESTART_VM,
    "B": XidClass.REBOOT,
    "W": XidClass.WORKFLOW,
    "M": XidClass.MONITOR,
    "H": XidClass.HARDWARE,
}
MODELS: Final = {"A": "A100", "H": "H100", "B": "B100", "G": "GB200"}


@dataclass(frozen=True, slots=True)
class Row:
    """What is expected of one code; ``since``: None where no XID 154 accompanies it."""

    nvidia: XidClass | None
    xid_class: XidClass
    action: Action
    scope: tuple[str, ...]
    since: int | None
    is_in_use: bool = True


NOT_IN_USE: Final = Row(None, XidClass.MONITOR, Action.MONITOR, (), None, is_in_use=False)


def _codes(words: str) -> Iterator[int]:
    for run in words.split(","):
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _expected() -> dict[int, Row]:
    expected: dict[int, Row] = {}
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        codes, nvidia, xid_class, action, scope, since = line.split()
        for code in _codes(codes):
            assert code not in expected, f"{code} stands in two rows"
            expected[code] = Row(
                CLASSES.get(nvidia),
                CLASSES[xid_class],
                Action(action),
                () if scope == "all" else tuple(MODELS[letter] for letter in scope),
                None if since == "-" else int(since),
            )
    return expected


EXPECTED: Final = _expected()


@pytest.mark.parametrize("code", KNOWN_CODES)
def test_each_code_is_as_nvidias_catalogue_has_it(code: int) -> None:
    entry = CATALOGUE[code]
    found = Row(entry.nvidia, entry.xid_class, entry.action, entry.scope, entry.announced_by_154_since, entry.is_in_use)
    assert found == EXPECTED.get(code, NOT_IN_USE)


def test_where_we_differ_from_nvidia_the_row_states_why() -> None:
    differing = [code for code, row in EXPECTED.items() if row.nvidia not in {None, row.xid_class}]
    assert not [code for code in differing if not CATALOGUE[code].why]
