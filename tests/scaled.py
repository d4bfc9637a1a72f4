"""How many cases a test tries: few in `make test`, all of them in `make soak`."""

import os
from typing import Final

SOAK_VARIABLE: Final = "MUSTER_SOAK"
IS_SOAK: Final = os.environ.get(SOAK_VARIABLE) == "1"
LEAST: Final = 20
SHARE: Final = 5


def examples(soak: int, quick: int | None = None) -> int:
    """Return the number of cases to try: ``soak`` in `make soak`, otherwise ``quick``.

    Without ``quick`` it is a fifth of ``soak``, at least 20, and never more than ``soak``.
    """
    if IS_SOAK:
        return soak
    return min(soak, max(LEAST, soak // SHARE)) if quick is None else quick
