"""The facts of admission for each GPU: a row for the GPUs of one cohort on one node, packed into one text.

A row a GPU would cost the driver and us more than all later work on it. No UUID and no serial holds a control character
(``wire.enrolment``), so two such characters separate the packed values.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, Text, case, cast, func, literal_column, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from muster.db.models import Node
from muster.db.queries.admission import facts_of_fleet
from muster.domain.ids import GpuUuid
from muster.domain.states import Standing

_FIELD_END: Final = "\x1f"
_GPU_END: Final = "\x1e"
_FLAGS: Final = ("is_assigned", "is_cordoned", "is_burning_in", "is_reported", "is_mig_enabled")


class PackedGpu(NamedTuple):
    """The packed facts of one GPU.

    ``since_ms``: of a probation alone, whose age counts. ``override``: the name of a standing, or nothing. ``flags``: a
    bit for each of ``is_assigned``, ``is_cordoned``, ``is_burning_in``, ``is_reported``, ``is_mig_enabled``. ``board``:
    its serial, or the UUID where it has none.
    """

    uuid: GpuUuid
    slot_index: int
    standing: Standing
    since_ms: int | None
    flags: int
    override: str
    score: int | None
    board: str

    def has(self, flag: str) -> bool:
        return bool(self.flags >> _FLAGS.index(flag) & 1)


def unpacked(gpus: str) -> Iterator[PackedGpu]:
    """Yield the GPUs in the column ``gpus`` of ``FACTS_BY_CELL``."""
    for text in gpus.split(_GPU_END):
        uuid, slot_index, standing, since_us, flags, override, score, serial = text.split(_FIELD_END)
        yield PackedGpu(
            GpuUuid(uuid),
            int(slot_index),
            Standing(standing),
            timedelta(microseconds=int(since_us)) // timedelta(milliseconds=1) if since_us else None,
            int(flags),
            override,
            int(score) if score else None,
            serial or uuid,
        )


def _facts_by_cell() -> Select[*tuple[Any, ...]]:
    one = facts_of_fleet().subquery("one")
    is_in_probation = one.c.standing == literal_column(f"'{Standing.PROBATION.value}'")
    since_us = cast(func.extract("epoch", one.c.standing_since) * literal_column("1000000"), BigInteger)
    flags: ColumnElement[int] = literal_column("0")
    for bit, flag in enumerate(_FLAGS):
        flags += cast(one.c[flag], Integer) * literal_column(str(1 << bit))
    nothing = literal_column("''", Text)
    fields = (
        one.c.uuid,
        cast(one.c.slot_index, Text),
        cast(one.c.standing, Text),
        func.coalesce(cast(case((is_in_probation, since_us)), Text), nothing),
        cast(flags, Text),
        func.coalesce(cast(one.c.override, Text), nothing),
        func.coalesce(cast(one.c.score, Text), nothing),
        func.coalesce(one.c.serial, nothing),
    )
    field_end = literal_column(f"chr({ord(_FIELD_END)})", Text)
    text: ColumnElement[str] = fields[0]
    for field in fields[1:]:
        text = text.op("||")(field_end).op("||")(field)
    gpu_end = literal_column(f"chr({ord(_GPU_END)})", Text)
    gpus = func.string_agg(text, aggregate_order_by(gpu_end, one.c.slot_index), type_=Text)
    packed = select(one.c.node_id, one.c.cohort_key, gpus.label("gpus"))
    packed_cells = packed.group_by(one.c.node_id, one.c.cohort_key).subquery("packed")
    return select(
        Node.id.label("node_id"),
        packed_cells.c.cohort_key,
        Node.contact,
        Node.rack,
        cast(Node.labels, Text).label("labels"),
        packed_cells.c.gpus,
    ).join(packed_cells, packed_cells.c.node_id == Node.id)


FACTS_BY_CELL: Final = _facts_by_cell()
"""Facts of each node with GPUs and each cohort there, in no order. Takes the instant ``now``.

Their GPUs are by slot, so that a row is as it was where nothing has changed.
"""
