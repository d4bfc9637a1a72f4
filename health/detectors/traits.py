"""The traits that evidence gets when it is made: what score and standing have to know of its detector and fault."""

from functools import lru_cache
from typing import Final

from health.detectors.gpu import gpu_lost
from health.detectors.groups import group_of_fault
from health.detectors.links import pcie_link
from health.detectors.load import clock_events
from health.detectors.memory import retired_pages, row_remap, unrepairable_memory
from health.detectors.modes import PEERS
from health.detectors.registry import NATURES
from health.detectors.repeats import after_diagnosis
from health.detectors.repeats.rules import HOLDS
from health.evidence.same_fault import shows_as, weighs_as
from health.xid.kernel_log import OFF_THE_BUS
from muster.domain.evidence.traits import FaultTraits, Nature

_REPLACING: Final = frozenset(
    {
        row_remap.FAILURE,
        row_remap.EXHAUSTED,
        retired_pages.USED_UP,
        retired_pages.WEEK,
        unrepairable_memory.NAME,
        *HOLDS,
    }
)
"""Fault keys of boards that are to be replaced."""
_READ_UNDER_LOAD: Final = frozenset({pcie_link.NAME})
"""Detectors of states that are read under load alone: such a state that is over was seen to be so under like load."""
_RATE_DETECTORS: Final = frozenset({clock_events.NAME, PEERS})
"""Detectors of rates that are stated like standing faults: no source states their end."""


@lru_cache(maxsize=65_536)
def traits_of(detector: str, fault_key: str) -> FaultTraits:
    """Return the traits of a fault. A detector that is unknown here states moments."""
    return FaultTraits(
        nature=NATURES.get(detector, Nature.MOMENT),
        shown_as=shows_as(fault_key),
        weighs_as=weighs_as(fault_key),
        xid=OFF_THE_BUS if detector == gpu_lost.NAME else None,
        needs_replacement=fault_key in _REPLACING,
        is_read_under_load=detector in _READ_UNDER_LOAD,
        ends_unseen=detector in _RATE_DETECTORS,
        is_missed_by_burn_in=detector == after_diagnosis.NAME,
        group=group_of_fault(detector, fault_key),
    )
