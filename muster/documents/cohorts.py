"""Cohorts, as the API answers them."""

from typing_extensions import TypedDict

from muster.documents.words import Page


class Cohort(TypedDict):
    """``attributes``: what is equal of its GPUs, null for what is not known. ``standings``: how many stand where."""

    key: str
    attributes: dict[str, str | None]
    num_gpus: int
    num_nodes: int
    standings: dict[str, int]


class CohortPage(Page):
    items: list[Cohort]


class Spread(TypedDict):
    """One measure over the GPUs whose newest burn-in has it; its unit stands in its name."""

    measure: str
    num_gpus: int
    min: float
    median: float
    max: float


class CohortDetail(Cohort):
    """``tolerance``: the part of the median that a GPU's figure may lie from it."""

    tolerance: float
    measures: list[Spread]
