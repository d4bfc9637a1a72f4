"""Cohorts, as the API answers them."""

from typing_extensions import TypedDict

from muster.documents.fields import Page


class Cohort(TypedDict):
    """A cohort. ``attributes``: the equal values of its GPUs, null if unknown.

    ``standings``: GPUs by their own standing. ``effective_standings``: by the standing by which placement treats them.
    ``num_cordoned_gpus``: GPUs that a cordon of their own or of their node keeps out of new placements.

    ``num_spare_nodes``: nodes that are kept free for gangs that lose some; null: the policy keeps none. ``dtypes``: the
    types that its tensor cores multiply, by compute capability; null if unknown.
    """

    key: str
    attributes: dict[str, str | None]
    num_gpus: int
    num_nodes: int
    num_spare_nodes: int | None
    standings: dict[str, int]
    effective_standings: dict[str, int]
    num_cordoned_gpus: int
    dtypes: list[str] | None


class CohortPage(Page):
    items: list[Cohort]


class Spread(TypedDict):
    """One measure over the GPUs whose newest burn-in has it; its unit is in its name."""

    measure: str
    num_gpus: int
    min: float
    median: float
    max: float


class CohortDetail(Cohort):
    """A cohort with its measures.

    ``tolerance``: the largest distance of a GPU's figure from the median, as a part of it.
    """

    tolerance: float
    measures: list[Spread]


class DriftNode(TypedDict):
    node_id: str
    name: str


class DriftOther(TypedDict):
    """GPUs with another value than most; the first hundred of their nodes."""

    value: str
    num_gpus: int
    num_nodes: int
    nodes: list[DriftNode]


class Drift(TypedDict):
    """One attribute in which GPUs of one model differ. ``majority``: the value of most.

    ``num_gpus``, ``num_nodes``: all of the model of which it is known. ``num_kept_out``: GPUs that may be in no gang
    with the majority for it, by the policy's ``health.cohort.attributes``; 0 where the policy lets them be mixed.
    ``mixed_in``: the tiers whose own ``homogeneity`` lets their gangs mix them.
    """

    model: str
    attribute: str
    majority: str
    num_gpus: int
    num_nodes: int
    num_differing: int
    num_kept_out: int
    is_cohort_attribute: bool
    mixed_in: list[str]
    others: list[DriftOther]


class DriftPage(Page):
    items: list[Drift]
