"""A person's standing over a GPU's own: which there are, and where none is accepted."""

from typing import Final

from health.standing.interventions import RefusedMoveError
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing

OVERRIDES: Final = (Standing.PROBATION, Standing.HEALTHY, Standing.SUSPECT, Standing.QUARANTINED)
"""The others cannot be set: a repair is started, a GPU is retired, and UNPROVEN lasts until a proof."""


def require_overridable(standing: Standing, wanted: Standing) -> None:
    """Check that ``wanted`` may stand over ``standing``: none brings back a GPU that is out (I11).

    Raises:
        RefusedMoveError: it may not; with what to do instead.
    """
    if standing is Standing.RETIRED:
        raise RefusedMoveError("it is RETIRED, out of service already: reinstate it first")
    if standing in OUT_OF_SERVICE and wanted is not Standing.QUARANTINED:
        raise RefusedMoveError(
            f"it is {standing}, and no override brings it back: a passed burn-in or the dismissal of its evidence does"
        )
