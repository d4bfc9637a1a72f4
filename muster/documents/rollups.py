"""The health and capacity of groups of GPUs, as the API answers them."""

from typing import Annotated

from typing_extensions import TypedDict

from muster.documents.fields import Moment, OneOf, Page
from muster.domain.gpu.rollup_groups import GroupKind


class Rollup(TypedDict):
    """A group of GPUs at one instant. Scores are 0 to 100, rounded down; without a GPU there is no group.

    ``at``: the instant that the figures are of. ``by``: by what GPUs are in groups. ``key``: the id of a node or a
    tenant, else the name of the rack, site or model, or the cohort's key; null: the fleet, or GPUs without a rack or a
    site. ``name``: the name of a node or a tenant, else the same as the key.

    ``score``: the mean, over the group's GPUs, of the least counted score among those on the same node: of a node its
    worst GPU's, of a larger group the share of it on sound nodes. ``worst``: the least counted score. ``p10``: the
    counted score that at least a tenth of the GPUs do not exceed. ``mean``: the mean counted score. A GPU's counted
    score is its score, or 0 while it is UNPROVEN, QUARANTINED, in REPAIR or without contact.

    ``num_nodes``: nodes with GPUs of the group. ``num_gpus``: delivered: all that are not retired. ``standings``: the
    same by effective standing. ``num_healthy``: GPUs that every tier admits, whether in use or not. ``num_admitted``:
    GPUs that at least one tier admits, whether in use or not.

    ``num_in_use``: GPUs that a job has, or that are being cleaned after one. ``num_reserved``: free ones that are held
    for one job. ``num_free``: other free ones that at least one tier admits. ``num_out``: the rest: not in use, and no
    tier admits them. These four add up to ``num_gpus``.
    """

    at: Moment
    by: Annotated[str, OneOf(GroupKind)]
    key: str | None
    name: str | None
    score: float
    worst: int
    p10: int
    mean: float
    num_nodes: int
    num_gpus: int
    standings: dict[str, int]
    num_healthy: int
    num_admitted: int
    num_in_use: int
    num_reserved: int
    num_free: int
    num_out: int


class RollupPage(Page):
    items: list[Rollup]
