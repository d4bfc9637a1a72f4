"""Questions about one evidence that its own fields answer: whether it weighs, condemns, is open, lasts.

Score and standing ask these. So nothing here knows a detector (``muster.domain.evidence.traits``).
"""

from typing import Final

from muster.domain.evidence.findings import Evidence, Severity, Trust
from muster.domain.evidence.traits import Nature

CODE: Final = "code"
"""Key in ``values``: the XID."""


def counts(evidence: Evidence) -> bool:
    """Return whether it weighs: it is neither dismissed, suspended, suppressed nor pending."""
    # So its state is ACTIVE or CLOSED. A score asks this of each evidence, and the state itself takes twice as long.
    is_out = evidence.is_dismissed or evidence.is_suspended or evidence.suppressed_by or evidence.pending is not None
    return not is_out


def is_open(evidence: Evidence) -> bool:
    """Return whether no source has seen the fault's end. Evidence of a moment (an XID) decays and is never closed."""
    return evidence.closed_at_ms is None


def is_condemning(evidence: Evidence) -> bool:
    """Return whether it quarantines: measured, neither dismissed nor suspended, at any age until a proof (I26)."""
    return (
        evidence.severity is Severity.CONDEMNING
        and evidence.trust is Trust.MEASURED
        and evidence.gpu_uuid is not None
        and counts(evidence)
    )


def lasts(evidence: Evidence) -> bool:
    """Return whether its fault stands until its end is seen."""
    nature = evidence.traits.nature
    return nature is Nature.STANDING or nature is Nature.STATE  # by identity: the hash of an enum is slow


def code_of(evidence: Evidence) -> int | None:
    """Return the XID, whichever source stated it first.

    A GPU that is lost fell off the bus, also where the log is not read.
    """
    code = evidence.values.get(CODE)
    return evidence.traits.xid if code is None else int(code)
