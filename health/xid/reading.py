"""The reading of one logged error: its code's row, and what its own text adds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from health.xid.catalogue import XidClass, entry_of
from health.xid.error_text import read_text
from health.xid.kernel_log import LogFault, LogKind
from health.xid.nvlink import NVLINK5_CODES, NVLINK_ERROR, LinkReading, read_nvlink5, read_registers
from health.xid.recovery import Action, action_of_xid_154

RECOVERY_ACTION_CHANGED: Final = 154

_WORD: Final = r"0x[0-9a-f]{1,8}"
_REGISTERS: Final = re.compile(
    rf"\blink (?P<link>\d{{1,3}})\s*\((?P<words>{_WORD}(?:[,\s]+{_WORD}){{0,9}})", re.IGNORECASE | re.ASCII
)
_NVLINK5: Final = re.compile(
    rf"(?P<unit>[A-Z][A-Z0-9_]{{2,31}})\s+(?P<fatal>Fatal|Nonfatal|Non-fatal)\s+XC(?P<contained>\d)\s+i(?P<injected>\d)"
    rf"\s+Link\s+(?P<link>-?\d{{1,3}})\s*\((?P<words>{_WORD}(?:[,\s]+{_WORD}){{1,9}})",
    re.IGNORECASE | re.ASCII,
)
_SXID_WORDS: Final = re.compile(
    r"^(?P<fatal>Fatal|Non-fatal)?,?\s*(?:Link (?P<link>\d{1,3})\b)?", re.IGNORECASE | re.ASCII
)

_SXID_DETAIL: Final = re.compile(r"(?:Severity \d|Data \{)")
"""The driver writes up to three lines an error; the first states the severity."""

_CLASS_OF: Final[Mapping[Action, XidClass]] = {
    Action.NONE: XidClass.IGNORE,
    Action.MONITOR: XidClass.MONITOR,
    Action.RESTART_JOB: XidClass.RESTART_APP,
    Action.DRAIN_P2P: XidClass.WORKFLOW,
    Action.DRAIN_AND_RESET: XidClass.RESET_GPU,
    Action.RESET_GPU: XidClass.RESET_GPU,
    Action.REBOOT_NODE: XidClass.REBOOT,
    Action.FIELD_DIAGNOSIS: XidClass.HARDWARE,
    Action.REPLACE: XidClass.HARDWARE,
}


@dataclass(frozen=True, slots=True)
class ErrorReading:
    """An error as it is read.

    ``source``: the source of the action. ``decoded``: the values in the line's text, by name. ``requested``: the action
    that the text itself asks for, None where it names none.
    """

    name: str
    xid_class: XidClass
    action: Action
    scope: str
    source: str
    decoded: Mapping[str, object] = field(default_factory=dict)
    link: LinkReading | None = None
    requested: Action | None = None


def read_fault(fault: LogFault, *, driver_branch: int | None = None) -> ErrorReading:
    """Return the reading of a fault. Never raises.

    The catalogue adds what the text does not state, and an unknown code is watched.
    """
    if fault.kind is LogKind.SXID:
        return read_sxid(fault.text)
    return read_xid(fault.code, fault.text, driver_branch=driver_branch)


def read_xid(code: int, text: str = "", *, driver_branch: int | None = None) -> ErrorReading:
    """Return the reading of an XID and the text after its code. ``driver_branch``: such as 580, where it is known."""
    entry = entry_of(code)
    words = _read_words(code, text, driver_branch)
    action = entry.action if words.requested is None else words.requested
    return ErrorReading(
        name=entry.name,
        xid_class=entry.xid_class if action is entry.action else _CLASS_OF[action],
        action=action,
        scope=",".join(entry.scope) or "all",
        source=entry.source if words.requested is None else words.source,
        decoded=words.decoded,
        link=words.link,
        requested=words.requested,
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """What an error's text states: values by name, and the action that it asks for with its source."""

    decoded: Mapping[str, object]
    requested: Action | None = None
    link: LinkReading | None = None
    source: str = "NVIDIA XID catalogue: the error's own words"


def _read_words(code: int, text: str, driver_branch: int | None) -> _Words:
    if code == RECOVERY_ACTION_CHANGED:
        return _Words({}, action_of_xid_154(text), source="the driver's request (XID 154)")
    if code == NVLINK_ERROR or code in NVLINK5_CODES:
        is_74 = code == NVLINK_ERROR
        decoded, link = _read_74(text) if is_74 else _read_144_to_150(code, text, driver_branch)
        return _Words(decoded, None if link is None else link.action, link)
    told = read_text(code, text)
    return _Words(told.decoded, told.requested, source="the driver's words in the line (RST, D-RST)")


def _read_74(text: str) -> tuple[dict[str, object], LinkReading | None]:
    found = _REGISTERS.search(text)
    if found is None:
        return {}, None
    words = _numbers(found["words"])
    link = read_registers(words)
    decoded: dict[str, object] = {"link": int(found["link"]), "registers": [f"0x{word:x}" for word in words]}
    if link is not None:
        decoded["bits"] = [
            {"register": each.register, "bit": each.bit, "meaning": each.meaning, "action": each.action.value}
            for each in link.bits
        ]
    return decoded, link


def _read_144_to_150(code: int, text: str, driver_branch: int | None) -> tuple[dict[str, object], LinkReading | None]:
    found = _NVLINK5.search(text)
    if found is None:
        return {}, None
    interrupt, status = _numbers(found["words"])[:2]
    link = read_nvlink5(code, found["unit"].upper(), interrupt, status, driver_branch=driver_branch)
    decoded: dict[str, object] = {
        "unit": found["unit"].upper(),
        "is_fatal": found["fatal"].lower() == "fatal",
        "is_contained": found["contained"] != "0",
        "is_injected": found["injected"] != "0",
        "link": int(found["link"]),
        "sub_code": interrupt >> 20 & 0x3F,
        "interrupt": f"0x{interrupt:08x}",
        "status": f"0x{status:08x}",
    }
    if link is not None and link.follow_up:
        decoded["follow_up"] = link.follow_up
    return decoded, link


def read_sxid(text: str) -> ErrorReading:
    """Return the reading of an NVSwitch's error, with the severity of the line.

    A fatal one stops the fabric of all its GPUs.
    """
    if _SXID_DETAIL.match(text):
        name = "detail of an NVSwitch's error on another line"
        return ErrorReading(name, XidClass.MONITOR, Action.MONITOR, "fabric", "class by Muster", {"is_detail": True})
    found = _SXID_WORDS.match(text)
    word = found["fatal"] if found is not None else None
    decoded: dict[str, object] = {"is_fatal": word.lower() == "fatal"} if word else {}
    if found is not None and found["link"]:
        decoded["link"] = int(found["link"])
    is_fatal = decoded.get("is_fatal") is True
    return ErrorReading(
        name="error of an NVSwitch" + (", fatal to its links" if is_fatal else ""),
        xid_class=XidClass.RESET_GPU if is_fatal else XidClass.MONITOR,
        action=Action.DRAIN_AND_RESET if is_fatal else Action.MONITOR,
        scope="fabric",
        source="the severity in the line; NVIDIA Fabric Manager guide" if word else "class by Muster",
        decoded=decoded,
    )


def _numbers(words: str) -> list[int]:
    return [int(word, 16) for word in re.split(r"[,\s]+", words.strip(" ,"))]
