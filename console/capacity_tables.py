"""The table of groups on the pages of capacity and of the fleet."""

from typing import Final

from console.tables import Column, Table
from control.health.rollup_reads import GroupRollup
from muster.domain.gpu.rollup_groups import GroupKind

GROUPS_SHOWN: Final = 100


def groups_table(kind: GroupKind, period: str) -> Table[GroupRollup]:
    """Return the table of the groups of a kind. ``period``: that of the line of their score, as text."""
    columns = (
        Column[GroupRollup]("group", kind.value.capitalize(), lambda each: each.name or each.rollup.key or "unknown"),
        Column[GroupRollup]("score", "Score", lambda each: each.rollup.score_tenths / 10, is_number=True),
        Column[GroupRollup]("past", period, lambda _: None, is_sortable=False, is_written=False),
        Column[GroupRollup]("worst", "Worst GPU", lambda each: each.rollup.worst, is_number=True),
        Column[GroupRollup]("mean", "Mean", lambda each: each.rollup.mean_tenths / 10, is_number=True),
        Column[GroupRollup]("gpus", "GPUs", lambda each: each.rollup.num_gpus, is_number=True),
        Column[GroupRollup]("healthy", "Healthy", lambda each: each.rollup.num_healthy, is_number=True),
        Column[GroupRollup]("in_use", "In use", lambda each: each.rollup.num_in_use, is_number=True),
        Column[GroupRollup]("reserved", "Reserved", lambda each: each.rollup.num_reserved, is_number=True),
        Column[GroupRollup]("free", "Free", lambda each: each.rollup.num_free, is_number=True),
        Column[GroupRollup]("out", "Out", lambda each: each.rollup.num_out, is_number=True),
    )
    return Table("groups", columns, "score", GROUPS_SHOWN)
