"""Proofs: up to when burn-ins and repairs have answered the faults of a GPU.

A repair answers all that was seen before it ended. A burn-in answers what it tested, as seen before it began: open
evidence of the fault groups that it covers, and evidence whose end was seen. A burn-in that read no clocks leaves an
open thermal fault as it is, and one of a single GPU leaves the errors of its NVLinks. A fault that a passed burn-in has
missed is answered by a repair alone, such as the field diagnosis.

    evidence                          burn-in that covers its group    any other burn-in
    open                              answered                         stays
    of a moment: it has no end        answered                         stays, and decays
    closed: its end was seen          answered                         answered
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from health.evidence.state import is_condemning, is_open
from muster.domain.evidence.findings import Evidence
from muster.domain.evidence.traits import FaultGroup


@dataclass(frozen=True, slots=True)
class Proofs:
    """The times of the newest proofs, in milliseconds of wall clock.

    ``newest_ms``: of any burn-in or repair. ``covering_ms``: of the newest that covers a fault group; a group without
    one has no entry. ``repaired_ms``: of the newest repair.
    """

    newest_ms: int
    covering_ms: Mapping[FaultGroup, int]
    repaired_ms: int | None = None

    @classmethod
    def of_all(cls, at_ms: int) -> Self:
        """Return a proof of every group, as a repair is."""
        return cls(at_ms, dict.fromkeys(FaultGroup, at_ms), at_ms)

    def answer(self, evidence: Evidence) -> bool:
        """Return whether they answer the evidence: a proof that covers it is newer."""
        if evidence.traits.is_missed_by_burn_in:
            return self.repaired_ms is not None and evidence.last_seen_ms < self.repaired_ms
        if not is_open(evidence):
            return evidence.last_seen_ms < self.newest_ms
        covering_ms = self.covering_ms.get(evidence.traits.group)
        return covering_ms is not None and evidence.last_seen_ms < covering_ms


def condemns(evidence: Evidence, proofs: Proofs | None) -> bool:
    """Return whether it quarantines: it is condemning, and no proof answers it."""
    return is_condemning(evidence) and (proofs is None or not proofs.answer(evidence))
