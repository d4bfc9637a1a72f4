"""Orders of the groups of one kind in one round."""

from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Final

from sqlalchemy import SQLColumnExpression, func

from control.core.paging import Sort, SortKey, signed_number_in
from muster.db.models import HealthRollup, Node, Tenant
from muster.domain.gpu.rollup_groups import GroupKind

ROUND: Final = SortKey(HealthRollup.at, attrgetter("rollup.at"), datetime.fromisoformat)
KEY: Final = SortKey(HealthRollup.key, attrgetter("rollup.key"))
_OUT: Final = HealthRollup.num_gpus - HealthRollup.num_in_use - HealthRollup.num_reserved - HealthRollup.num_free
_SORTED_NUMBERS: Final[Mapping[str, tuple[SQLColumnExpression[int], str]]] = {
    "score": (HealthRollup.score_tenths, "score_tenths"),
    "worst": (HealthRollup.worst, "worst"),
    "mean": (HealthRollup.mean_tenths, "mean_tenths"),
    "gpus": (HealthRollup.num_gpus, "num_gpus"),
    "healthy": (HealthRollup.num_healthy, "num_healthy"),
    "in_use": (HealthRollup.num_in_use, "num_in_use"),
    "reserved": (HealthRollup.num_reserved, "num_reserved"),
    "free": (HealthRollup.num_free, "num_free"),
    "out": (_OUT, "num_out"),
}
_GROUP_NAMES: Final = {GroupKind.NODE: Node.name, GroupKind.TENANT: Tenant.name}


def rollup_sort(kind: GroupKind, by: str, *, is_descending: bool) -> Sort:
    """Return the order of groups by ``group``, which is their name, or by one of their numbers."""
    if by == "group":
        name = func.coalesce(_GROUP_NAMES[kind], HealthRollup.key) if kind in _GROUP_NAMES else HealthRollup.key
        return Sort((ROUND, SortKey(name, lambda found: found.name or found.rollup.key), KEY), is_descending)
    column, field = _SORTED_NUMBERS[by]
    return Sort((ROUND, SortKey(column, attrgetter(f"rollup.{field}"), signed_number_in), KEY), is_descending)
