"""The text of an NVLink error: the registers of an XID 74, and the units of XIDs 144 to 150.

Sources: NVIDIA's XID catalogue, its sheet for 144 to 150, and its guide to XID 74 on Hopper. The rows are data, in
``knowledge.json``. A text without a row gives None here, and the catalogue's row for the code stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from health.xid.catalogue import KNOWLEDGE, entry_of
from health.xid.recovery import Action

NVLINK_ERROR: Final = 74
NVLINK5_CODES: Final = range(144, 151)
_UNITS_NUMBERED_AGAIN_SINCE: Final = 575
_STRENGTH: Final = {
    action: rank
    for rank, action in enumerate(
        (Action.NONE, Action.MONITOR, Action.RESTART_JOB, Action.FIELD_DIAGNOSIS, Action.RESET_GPU)
    )
}


@dataclass(frozen=True, slots=True)
class RegisterBit:
    """One bit that is set. ``register`` counts from 1. ``repeated``: the action when it recurs on one link.

    ``takes_more``: of an ECC or parity error, which NVIDIA allows to occur twice.
    """

    register: int
    bit: int
    meaning: str
    action: Action
    repeated: Action | None = None
    takes_more: bool = False


@dataclass(frozen=True, slots=True)
class LinkReading:
    """The action that an NVLink error asks for, and why.

    ``bits`` of an XID 74; ``unit`` and ``sub_code`` of 144 to 150.
    """

    action: Action
    follow_up: str = ""
    unit: str | None = None
    sub_code: int | None = None
    bits: tuple[RegisterBit, ...] = ()


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the sheet. ``status`` None: any. ``variant``: the unit's variant bit, None where any matches."""

    code: int
    unit: str
    old_id: int
    new_id: int
    status: int | None
    action: Action
    follow_up: str
    sub_code: int
    variant: bool | None


def _row(row: dict[str, Any]) -> _Row:
    return _Row(
        code=row["code"],
        unit=row["unit"],
        old_id=row["id_before_575"],
        new_id=row["id_since_575"],
        status=None if row["status"] == "any" else int(row["status"], 16),
        action=Action(row["action"]),
        follow_up=row.get("follow_up", ""),
        sub_code=row.get("sub_code", 0),
        variant=row.get("variant"),
    )


def _register_bit(row: dict[str, Any]) -> RegisterBit:
    repeated = row.get("repeated")
    return RegisterBit(
        row["register"],
        row["bit"],
        row["meaning"],
        Action(row["action"]),
        Action(repeated) if repeated is not None else None,
        row.get("takes_more", False),
    )


NVLINK5_ROWS: Final = tuple(map(_row, KNOWLEDGE["nvlink5"]))
REGISTER_BITS: Final = {(each.register, each.bit): each for each in map(_register_bit, KNOWLEDGE["nvlink_registers"])}
_REGISTERS_THAT_COUNT: Final = frozenset(register for register, _ in REGISTER_BITS)
_UNITS_BY_OTHER_NAMES: Final = {
    "TLW_RX": "TLW_RX_PIPE0",
    "TLW_TX": "TLW_TX_PIPE0",
    "NVLPW": "NVLPW_CTRL",
    "NETIR": "NETIR_INT",
    "NETIR_LINK_EVT": "NETIR_LINK_DOWN",
    "MSE": "MSE_WATCHDOG",
}
"""Drivers before R575 name some units otherwise, and have one unit where later ones have two that act alike."""
_PASSED_OVER: Final = frozenset({"TREX", "NVLPW_CTRL", "NETIR_BER_EVENT"})
"""Units of which every status asks for nothing, also one that no row names."""
_COUNTED_UNITS: Final = frozenset({"NETIR_BER_EVENT", "NETIR_MFDE_EVENT"})
"""Units whose status is a number; all others' is a set of bits."""


def read_registers(words: Sequence[int]) -> LinkReading | None:
    """Return the reading of an XID 74's registers, in the order of the line; None where no bit is known.

    The strongest action of all bits that are set is the error's; each bit has its meaning. An unknown bit, in a
    register that counts, gets the catalogue's action for the code.
    """
    told = [
        (register, bit)
        for register, word in enumerate(words, start=1)
        if register in _REGISTERS_THAT_COUNT
        for bit in range(word.bit_length())
        if word >> bit & 1
    ]
    if not any(each in REGISTER_BITS for each in told):
        return None
    whole = entry_of(NVLINK_ERROR).action
    found = tuple(REGISTER_BITS.get(each) or RegisterBit(*each, "not known", whole) for each in told)
    return LinkReading(max((each.action for each in found), key=_STRENGTH.__getitem__), bits=found)


def read_nvlink5(
    code: int, unit: str, interrupt: int, status: int, *, driver_branch: int | None = None
) -> LinkReading | None:
    """Return the reading of an XID 144 to 150; None where no row has the unit or its status.

    ``interrupt`` and ``status`` are words 1 and 2 of the line, ``unit`` is the unit's name in the line.
    ``driver_branch`` (such as 580) determines the layout of the first word; without it the word itself does: before
    R575 its lowest five bits repeat the code. Among several bits of a status the strongest action is the error's.
    """
    unit = _UNITS_BY_OTHER_NAMES.get(unit, unit)
    rows = [row for row in NVLINK5_ROWS if row.code == code and row.unit == unit]
    if not rows:
        return None
    is_old = _is_old_layout(code, interrupt, rows[0], driver_branch)
    sub_code = interrupt >> 20 & 0x3F
    has_variant = bool(interrupt >> (10 if is_old else 7) & 1)
    fitting = [
        row
        for row in rows
        if row.variant in {None, has_variant}
        and row.sub_code == (sub_code if unit == "NETIR_LINK_DOWN" else 0)
        and _fits(row, status)
    ]
    if not fitting and unit not in _PASSED_OVER:
        return None
    fitting = fitting or rows
    row = max(fitting, key=lambda each: _STRENGTH[each.action])
    return LinkReading(row.action, row.follow_up, unit, sub_code)


def _fits(row: _Row, status: int) -> bool:
    if row.status is None or row.unit in _COUNTED_UNITS:
        return row.status is None or row.status == status
    return bool(row.status & status)


def _is_old_layout(code: int, interrupt: int, row: _Row, driver_branch: int | None) -> bool:
    if driver_branch is not None:
        return driver_branch < _UNITS_NUMBERED_AGAIN_SINCE
    return interrupt & 0x1F == code - 143 and interrupt >> 5 & 0x1F == row.old_id
