"""The text of errors that are about no NVLink: memory errors (48, 94, 95, 171, 172), clean-up (45), exception (13).

Shapes as the driver has them (``open-gpu-kernel-modules``, error containment since Ampere)::

    94  Contained: SM (0x1). RST: No, D-RST: No
    95  Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No
    95  Uncontained: DED CBC (0x0, 0x1). physAddr: 0x00012340 RST: Yes, D-RST: No
    171 Double Bit ECC Error in FBPA 4 subpartition 1
    45  Ch 0000000b
    13  Graphics SM Warp Exception on (GPC 7, TPC 0, SM 0): Out Of Range Address

``RST`` states that the GPU has to be reset, ``D-RST`` that it has to be drained and reset. With both ``No`` a contained
error ended the one program that read the data, and the driver asks for nothing more.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from health.xid.catalogue import entry_of
from health.xid.recovery import SEVERITY_OF, Action

SM_EXCEPTION: Final = 13
MMU_FAULT: Final = 31
CLEANUP: Final = 45
CONTAINED: Final = 94
_DRAM_ERROR: Final = 171
_SRAM_ERROR: Final = 172
MEMORY_ERRORS: Final = frozenset({48, CONTAINED, 95, _DRAM_ERROR, _SRAM_ERROR})

_CONTAINMENT: Final = re.compile(
    r"\b(?P<how>Contained|Uncontained): (?P<unit>[A-Z][A-Z0-9 ]{0,31}?)\s*(?=[(.,]|RST:|$)", re.IGNORECASE | re.ASCII
)
_RESETS: Final = re.compile(
    r"(?<![-\w])RST:\s*(?P<reset>Yes|No)\s*[,;]\s*D-RST:\s*(?P<drain>Yes|No)\b", re.IGNORECASE | re.ASCII
)
_MEMORY: Final = re.compile(r"\b(?P<memory>[SD]RAM)\b", re.ASCII)
_MEMORY_OF: Final = {_DRAM_ERROR: "DRAM", _SRAM_ERROR: "SRAM"}
_PARTS: Final = re.compile(r"\b(?P<part>FBPA|subpartition|partition) (?P<number>\d{1,4})\b", re.IGNORECASE | re.ASCII)
_CHANNEL: Final = re.compile(r"^(?:Ch|channel)\s+(?:0x)?(?P<channel>[0-9a-f]{1,8})\b", re.IGNORECASE | re.ASCII)
_EARLIER_ERROR: Final = re.compile(r"\bdue to previous errors\b", re.IGNORECASE | re.ASCII)
_GPC: Final = re.compile(r"\bGPC\s*(?P<gpc>\d{1,2}),\s*TPC\s*(?P<tpc>\d{1,2})(?:,\s*SM\s*(?P<sm>\d{1,2}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TextReading:
    """The values in an error's text, by name, and the action that the text asks for; None where it asks for none."""

    decoded: dict[str, object] = field(default_factory=dict)
    requested: Action | None = None


def read_text(code: int, text: str) -> TextReading:
    """Return the reading of the text of an error that is about no NVLink; an empty one for a code without such text."""
    if code in MEMORY_ERRORS:
        return _read_memory_error(code, text)
    if code == CLEANUP:
        return _read_cleanup(text)
    place = _GPC.search(text) if code == SM_EXCEPTION else None
    return TextReading({name: int(value) for name, value in place.groupdict().items() if value} if place else {})


def _read_memory_error(code: int, text: str) -> TextReading:
    decoded: dict[str, object] = {}
    found, resets, memory = _CONTAINMENT.search(text), _RESETS.search(text), _MEMORY.search(text)
    if found is not None:
        decoded |= {"unit": found["unit"].strip(), "is_contained": found["how"].lower() == "contained"}
    if memory is not None or code in _MEMORY_OF:
        decoded["memory"] = memory["memory"] if memory is not None else _MEMORY_OF[code]
    decoded |= {each["part"].lower(): int(each["number"]) for each in _PARTS.finditer(text)}
    if resets is None:
        return TextReading(decoded)
    needs_reset, needs_drain = (resets[name].lower() == "yes" for name in ("reset", "drain"))
    decoded |= {"needs_reset": needs_reset, "needs_drain_and_reset": needs_drain}
    is_contained = decoded.get("is_contained") is True
    return TextReading(decoded, _requested(code, needs_reset=needs_reset, needs_drain=needs_drain, ended=is_contained))


def _requested(code: int, *, needs_reset: bool, needs_drain: bool, ended: bool) -> Action | None:
    """Return the action of the text; None where it is milder than a catalogue's row about data that may be wrong.

    ``ended``: the error was contained, so that the program that read the data has ended.
    """
    if needs_reset:
        action = Action.RESET_GPU
    elif needs_drain:
        action = Action.DRAIN_AND_RESET
    elif ended:
        action = Action.RESTART_JOB
    else:
        return None
    entry = entry_of(code)
    return None if entry.threatens_correctness and SEVERITY_OF[action] < entry.severity else action


def _read_cleanup(text: str) -> TextReading:
    channel = _CHANNEL.search(text)
    decoded: dict[str, object] = {} if channel is None else {"channel": int(channel["channel"], 16)}
    if _EARLIER_ERROR.search(text) is not None:
        decoded["follows_errors"] = True
    return TextReading(decoded)
