"""``muster job ranks`` and ``muster job steps``: a training as its ranks report it."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from muster.cli.framework.field_help import parameter_help
from muster.cli.framework.names import JobId
from muster.cli.framework.output import Listing, age, moment_of
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Column, Document
from muster.domain.job.pace import PARTS, UNSEEN_EXCHANGE, own_s_of, pace_of, wait_s_of
from muster.domain.job.rank_places import places_of
from muster.domain.spread import LEAST_RANKS, Figure, Spread, odd_ranks, spread


def figure_of(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _shown(item: Document, name: str, form: str) -> str | None:
    """Return a figure of the pace of a rank or step, if the program and the server have one."""
    value = (item.get("pace") or {}).get(name)
    return None if value is None else form.format(value)


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _part(part: str) -> Column:
    return Column(f"{part.upper()} S", lambda item: _shown(item, f"{part}_s", "{:.4f}"), only_wide=True)


_ODD_NAMED: Final = 4
RANKS: Final = (
    Column("RANK", lambda item: item["rank"]),
    Column("STEP", lambda item: item["step"]),
    Column("LOSS", lambda item: figure_of(item["loss"])),
    Column("STEP S", lambda item: figure_of(item["step_s"])),
    Column("STANDS OUT BY", lambda item: ", ".join(item["stands_out_by"])),
    Column("OWN S", lambda item: _seconds(own_s_of(item.get("pace") or {})), only_wide=True),
    Column("WAIT S", lambda item: _seconds(wait_s_of(item.get("pace") or {})), only_wide=True),
    Column("TOKENS/S", lambda item: _shown(item, "tokens_per_s", "{:,.0f}"), only_wide=True),
    Column("MEM MIB", lambda item: _shown(item, "memory_mib", "{:,.0f}"), only_wide=True),
    Column("SAMPLES", lambda item: _shown(item, "samples", "{:,}"), only_wide=True),
    Column("SAMPLES/STEP", lambda item: _shown(item, "samples_per_step", "{:,g}"), only_wide=True),
    Column("TOKENS/STEP", lambda item: _shown(item, "tokens_per_step", "{:,g}"), only_wide=True),
    Column("PADDING", lambda item: _shown(item, "padding", "{:.1%}"), only_wide=True),
    Column("MFU", lambda item: _shown(item, "mfu", "{:.1%}"), only_wide=True),
    *map(_part, PARTS),
    Column("TOLD", lambda item: age(item["updated_at"])),
    Column("OUTCOME", lambda item: item["outcome"]),
    Column("NODE", lambda item: item["node_id"], only_wide=True),
)
STEPS: Final = (
    Column("STEP", lambda item: item["step"]),
    Column("LOSS", lambda item: item["loss"]),
    Column("STEP S", lambda item: figure_of(item["step_s"])),
    *map(_part, PARTS),
    Column("AT", lambda item: moment_of(item["at"])),
    Column("ATTEMPT", lambda item: item["attempt_id"], only_wide=True),
)


def ranks(job_id: JobId) -> Listing:
    """List the newest report of each rank: step, loss, seconds a step, the figures by which it stands out from ranks
    of equal work, and how evenly they share the data.
    """
    with open_client() as client:
        found = client.ranks(job_id)
        layout = client.job(job_id)["spec"].get("layout") if _needs_layout(found) else None
    spreads = _spreads(found, layout)
    odd = odd_ranks(spreads)
    marked = [{**item, "stands_out_by": [str(figure) for figure in odd.get(item["rank"], ())]} for item in found]
    empty = "No rank has reported: the program does not use muster.train."
    return Listing(marked, RANKS, empty, [*_odd_in_words(spreads), *_shares(found)])


def _needs_layout(found: Sequence[Document]) -> bool:
    """Return whether ranks could stand out and one does not report its place: the job's layout has it then."""
    return len(found) >= LEAST_RANKS and any(not (item.get("pace") or {}).get("place") for item in found)


def _spreads(found: Sequence[Document], layout: Document | None) -> tuple[Spread, ...]:
    """Return the spread of each figure over the ranks, compared within equal places of the layout."""
    paces = {item["rank"]: item.get("pace") or {} for item in found}
    figures: dict[Figure, dict[int, float | None]] = {
        Figure.MFU: {rank: pace.get("mfu") for rank, pace in paces.items()},
        Figure.STEP: {item["rank"]: item["step_s"] for item in found},
        Figure.OWN: {rank: own_s_of(pace) for rank, pace in paces.items()},
        Figure.WAIT: {rank: wait_s_of(pace) for rank, pace in paces.items()},
    }
    return spread(figures, places_of({rank: pace.get("place") for rank, pace in paces.items()}, layout))


def _odd_in_words(spreads: Sequence[Spread]) -> Iterator[str]:
    for each in spreads:
        worse = [odd for odd in each.odd if odd.is_worse]
        for odd in worse[:_ODD_NAMED]:
            yield (
                f"Rank {odd.rank} stands out by {each.figure}: {odd.value:.4g}, where ranks of equal work have "
                f"{odd.usual:.4g}."
            )
        if len(worse) > _ODD_NAMED:
            yield f"{len(worse) - _ODD_NAMED} more ranks stand out by {each.figure}."


def _shares(found: Sequence[Document]) -> Iterator[str]:
    pace = pace_of([item.get("pace") for item in found])
    if pace is None:
        return
    for what, skew in (("samples", pace.samples), ("tokens", pace.tokens)):
        if skew is not None:
            yield f"Of a step's {what}, rank {found[skew.place]['rank']} has {skew.ratio:.2f} times the mean, the most."
    if pace.padding is not None:
        yield f"{pace.padding:.1%} of what they read is padding."
    if "collective" in pace.unseen:
        yield UNSEEN_EXCHANGE


def steps(
    job_id: JobId, last: Annotated[int, typer.Option(min=1, help=parameter_help("limit", "The newest."))] = 20
) -> Listing:
    """List the loss, step by step."""
    with open_client() as client:
        return Listing(list(client.steps(job_id))[-last:], STEPS, "No step was reported.")
