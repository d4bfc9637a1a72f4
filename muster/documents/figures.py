"""Indicators in the API: their definitions, and their values over time."""

from typing_extensions import TypedDict

from muster.documents.fields import Moment, Page


class FigurePart(TypedDict):
    """A part that a figure is made of."""

    name: str
    meaning: str
    """What the part counts."""


class FigureDefinition(TypedDict):
    """What a figure means."""

    name: str
    indicator: str
    """The indicator that it belongs to, M1 to M15."""
    unit: str
    """The unit of its value; empty: a share, 0 to 1."""
    kind: str
    """How its value follows from `top` and `bottom`: a share of numbers, a mean (total by number), or a rate (total by
    total)."""
    better: str
    """Which way is better: higher, lower, neither."""
    meaning: str
    """What is counted, and in which hour."""
    counted_from: str
    """The records that are read."""
    excluded: str
    """Exclusions, and what is counted as a part of its own; may be empty."""
    target: str
    """What to aim for; may be empty."""
    source: str
    """records, gpus or ledger."""
    parts: list[FigurePart]
    """Its parts."""
    top: list[str]
    """The parts above the line of its value."""
    bottom: list[str]
    """The parts below the line of its value."""
    has_percentiles: bool
    """Whether its values have percentiles."""


class FigurePage(Page):
    items: list[FigureDefinition]


class FigurePercentile(TypedDict):
    """A percentile, at most one per cent off."""

    percentile: float
    """The percentile, 0 to 100."""
    value: float
    """The value that so many per cent do not exceed."""


class FigureSum(TypedDict):
    """A part over some time."""

    part: str
    """The name of the part."""
    num: int
    """The number of observations; 0: the part has a total alone."""
    total: float
    """Their sum."""
    percentiles: list[FigurePercentile]
    """How the part's values are spread; empty: it has no percentiles."""


class FigureValue(TypedDict):
    """A figure over some time."""

    value: float | None
    """Its value; null: nothing was counted."""
    percentiles: list[FigurePercentile]
    """How its values are spread; empty: it has no percentiles."""
    parts: list[FigureSum]
    """The parts that were counted."""


class FigurePoint(FigureValue):
    """A figure in one hour or day."""

    begins_at: Moment
    """The beginning of the hour or day."""


class FigureSeries(FigureValue):
    """A figure of one group: over the whole time, and by hour or day."""

    group: str
    """The tenant's id, the tier, class or site; empty: unknown, or all."""
    points: list[FigurePoint]
    """One point for each hour or day in which something was counted, in order."""


class Figure(TypedDict):
    """A figure over time."""

    definition: FigureDefinition
    """What it means."""
    since: Moment
    """The beginning, rounded down to a whole hour or day."""
    until: Moment
    """The end, rounded up to a whole hour or day."""
    step: str
    """The length of a point: hour or day."""
    by: str
    """What the groups have in common: tenant, tier, class, site; none: one group of all."""
    final_until: Moment | None
    """Hours before this are final, since no report can come any more; null: unknown."""
    num_left_out: int
    """The number of groups, those with the fewest observations, that the answer omits."""
    series: list[FigureSeries]
    """One series for each group, the one with the most observations first."""
