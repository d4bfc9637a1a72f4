"""The place of a rank in its program's parallel layout. Ranks of one place have equal work and can be compared."""

from collections.abc import Mapping
from typing import Any


def places_of(reported: Mapping[int, str | None], degrees: Mapping[str, Any] | None) -> dict[int, str]:
    """Return a name of the place of each rank; empty: all ranks have equal work.

    ``reported``: rank → place, as its program reports it; None: it does not. Then the layout of the job counts.
    ``degrees``: ``pp``, ``dp``, ``fsdp`` and ``tp`` of that layout, where ``tp`` varies fastest and ``pp`` slowest.
    """
    stage_ranks, tp = widths_of(degrees)

    def by_layout(rank: int) -> str:
        return f"{rank // stage_ranks}/{rank % tp}" if degrees else ""

    return {rank: place or by_layout(rank) for rank, place in reported.items()}


def widths_of(degrees: Mapping[str, Any] | None) -> tuple[int, int]:
    """Return the number of ranks of one pipeline stage, and of one tensor group."""
    dp, fsdp, tp = (int((degrees or {}).get(name) or 1) for name in ("dp", "fsdp", "tp"))
    return dp * fsdp * tp, tp
