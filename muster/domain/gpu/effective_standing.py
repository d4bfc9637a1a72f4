"""The effective standing of a GPU: the one definition by which admission, counts, filters and pages treat it.

``muster.db.queries.effective_standing`` is the same definition for queries. A test compares the two.
"""

from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing


def effective_standing(standing: Standing, override: Standing | None) -> Standing:
    """Return a person's standing in force, unless the GPU's own is out of service: no person overrules that."""
    return standing if override is None or standing in OUT_OF_SERVICE else override
