"""Results of a run of suspect steps, as its ranks reported them, and the documents in which they are kept.

A program states them, so each size is bounded and a document that does not fit is refused as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MOST_RANKS: Final = 32
MOST_LOSSES: Final = 48


@dataclass(frozen=True, slots=True)
class RankResult:
    """The result of one rank. ``state``: a digest of its tensors after the last step; ``losses``: digests by step, from
    the first step that is not to be trusted on each of all losses up to the step.

    ``place``: the GPU on which it ran, or the host of a rank without a GPU of its own. It is ours, not the program's.
    """

    state: str
    losses: Mapping[int, str] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run of suspect steps. ``is_again``: it shows the fault. ``end_step``: the step after which it was compared.

    ``from_step``: it began after this one. ``num_ranks``: of the job, of which some reported; 0: not known.
    """

    end_step: int
    is_again: bool
    ranks: Mapping[int, RankResult]
    from_step: int = 0
    num_ranks: int = 0


def result_of(
    reported: Sequence[tuple[int, str, Sequence[tuple[int, str]]]],
    places: Mapping[int, str],
    *,
    end_step: int,
    is_again: bool,
    from_step: int = 0,
    num_ranks: int = 0,
) -> RunResult:
    """Return a run's result from the lines of its first rank. ``places``: of its ranks, as we know them."""
    ranks = {
        rank: RankResult(state, dict(losses[:MOST_LOSSES]), places.get(rank, ""))
        for rank, state, losses in reported[:MOST_RANKS]
    }
    return RunResult(end_step, is_again, ranks, from_step, num_ranks)


def to_document(run: RunResult) -> dict[str, Any]:
    ranks = {str(rank): [each.state, sorted(each.losses.items()), each.place] for rank, each in run.ranks.items()}
    return {
        "end_step": run.end_step,
        "is_again": run.is_again,
        "ranks": ranks,
        "from_step": run.from_step,
        "num_ranks": run.num_ranks,
    }


def from_document(document: Mapping[str, Any]) -> RunResult:
    """Return a stored result."""
    ranks = {
        int(rank): RankResult(str(state), {int(step): str(loss) for step, loss in losses}, str(place))
        for rank, (state, losses, place) in document["ranks"].items()
    }
    return RunResult(
        int(document["end_step"]),
        bool(document["is_again"]),
        ranks,
        int(document.get("from_step", 0)),
        int(document.get("num_ranks", 0)),
    )
