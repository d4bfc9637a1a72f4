"""Traits of a detector's faults: all that score and standing have to know of the rule that found an evidence.

They are data. An evidence gets them when it is made (``health.detectors.traits``), so that no code that judges evidence
imports a detector.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Nature(StrEnum):
    """The kind of statement that a rule makes, and so how long its statements are one fault."""

    MOMENT = "moment"
    """Something that happened. It has no end, it decays."""
    STANDING = "standing"
    """A state that every sample shows as long as it stands."""
    STATE = "state"
    """A state that is reported when it changes and each hour, until another state is reported."""
    RATE = "rate"
    """Too much within a window; stated again as long as it lasts."""
    REPEAT = "repeat"
    """A repetition of evidence that is there."""


class FaultGroup(StrEnum):
    """The part of a GPU that a fault is in. A board's repairs are counted by it, and a burn-in covers some of them."""

    MEMORY = "memory"
    BUS = "bus"
    """PCIe, and whether the GPU is on it."""
    LINK = "link"
    """NVLink and its fabric."""
    CLOCKS = "clocks"
    """Clocks, and the heat that holds them down."""
    DRIVER = "driver"
    OTHER = "other"
    """Computation, settings, and all that has no group of its own."""


LASTING: Final = frozenset({Nature.STANDING, Nature.STATE})
"""Natures of faults that stand until their end is seen."""


@dataclass(frozen=True, slots=True)
class FaultTraits:
    """The traits of one fault.

    ``shown_as``: the fault key under which a sample shows the same fault. ``weighs_as``: the key that standing faults
    share where they weigh as one. ``xid``: the XID that the fault is where its values state none.

    ``needs_replacement``: no repair of the board lasts. ``is_read_under_load``: its state is read under load alone.
    ``ends_unseen``: it is stated as long as it stands, and no source states its end. ``is_missed_by_burn_in``: a
    burn-in that passed did not find it, so that a burn-in proves nothing about it. ``group``: the part that it is in.
    """

    nature: Nature
    shown_as: str
    weighs_as: str
    xid: int | None = None
    needs_replacement: bool = False
    is_read_under_load: bool = False
    ends_unseen: bool = False
    is_missed_by_burn_in: bool = False
    group: FaultGroup = FaultGroup.OTHER
