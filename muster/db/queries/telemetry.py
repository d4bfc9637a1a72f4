"""The statements of a group commit of telemetry: each takes the whole group at once, in the order of its keys.

A group's reports travel as parallel packed arrays (``db.pipeline.packed_arrays``): a few parameters, however many rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import Connection

from muster.db.pipeline.packed_arrays import joined_texts, packed_ints

# A subquery in the list of columns is looked up by its index, key by key; a join may read every key for each.
_ODD_KEYS: Final = r"""
SELECT asked.id, asked.used_at IS NULL
FROM (
    SELECT id, (
        SELECT coalesce(last_used_at, '-infinity') FROM api_keys AS key
        WHERE key.id = one.id AND key.revoked_at IS NULL AND (key.expires_at IS NULL OR key.expires_at > %(now)s)
    ) AS used_at
    FROM unnest(string_to_array(%(ids)s, E'\x1f')) AS one (id) OFFSET 0
) AS asked
WHERE asked.used_at IS NULL OR asked.used_at < %(now)s - interval '1 minute'
"""
_NOTE_USE: Final = """
UPDATE api_keys SET last_used_at = %(now)s WHERE id IN
    (SELECT id FROM api_keys WHERE id = ANY(%(ids)s) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
"""
_ADD_NODES: Final = """
INSERT INTO node_latest (node_id, boot_order, past_boot_ids, seq, newest_ms, skew_ms)
SELECT id, 0, '[]', -1, 0, 0 FROM nodes WHERE id = ANY(%(ids)s) ORDER BY id ON CONFLICT DO NOTHING
"""
_LOCK_NODES: Final = r"""
SELECT latest.node_id, latest.boot_id, latest.boot_order, latest.seq, latest.newest_ms,
    NULLIF(latest.past_boot_ids, '[]'), nodes.boot_id, NULLIF(nodes.past_boot_ids, '[]'), latest.judge_memory,
    latest.freshness::text, latest.silence_stated_at IS NOT NULL,
    (SELECT string_agg(uuid, E'\x1f') FROM gpus WHERE gpus.node_id = nodes.id)
FROM node_latest AS latest JOIN nodes ON nodes.id = latest.node_id
WHERE latest.node_id = ANY(string_to_array(%(ids)s, E'\x1f')) ORDER BY latest.node_id FOR NO KEY UPDATE OF latest
"""
_OWNERS: Final = "SELECT uuid, node_id FROM gpus WHERE uuid = ANY(%(uuids)s)"
_SEEN: Final = r"""
SELECT report.i - 1
FROM unnest(string_to_array(%(node_ids)s, E'\x1f'), string_to_array(%(boot_ids)s, E'\x1f'), %(seqs)b)
    WITH ORDINALITY AS report (node_id, boot_id, seq, i)
    JOIN telemetry_blocks AS block USING (node_id, boot_id, seq)
"""
_ADD_BLOCKS: Final = r"""
INSERT INTO telemetry_blocks (node_id, boot_id, seq, at, received_at, schema, content)
SELECT report.node_id, report.boot_id, report.seq, to_timestamp(report.at_ms / 1000.0), %(now)s, report.schema,
    substring(flat.content FROM report.start::int FOR report.length::int)
FROM unnest(string_to_array(%(node_ids)s, E'\x1f'), string_to_array(%(boot_ids)s, E'\x1f'), %(seqs)b, %(at_ms)b,
        %(schemas)b, %(starts)b, %(lengths)b) AS report (node_id, boot_id, seq, at_ms, schema, start, length),
    (SELECT %(content)b::bytea AS content) AS flat
ON CONFLICT DO NOTHING
"""
_MOVE_NODES: Final = r"""
UPDATE node_latest AS latest SET boot_id = fresh.boot_id, boot_order = fresh.boot_order, seq = fresh.seq,
    newest_ms = fresh.newest_ms, past_boot_ids = fresh.past::jsonb, at = to_timestamp(fresh.at_ms / 1000.0),
    received_at = %(now)s, skew_ms = fresh.skew_ms,
    readings = CASE fresh.readings WHEN 'null' THEN latest.readings ELSE fresh.readings::jsonb END,
    judge_memory = NULLIF(fresh.memory, 'null')::jsonb, freshness = NULLIF(fresh.freshness, 'null')::jsonb,
    silence_stated_at = NULL, overdue_at = CASE
        WHEN fresh.freshness = 'null' THEN NULL
        WHEN latest.overdue_at > %(overdue_soon)s AND latest.silence_stated_at IS NULL THEN latest.overdue_at
        ELSE %(overdue)s END, gpus_behind = NULLIF(fresh.behind, 'null')::jsonb,
    gpu_readings = substring(flat.content FROM fresh.start::int FOR fresh.length::int)
FROM unnest(string_to_array(%(node_ids)s, E'\x1f'), string_to_array(%(boot_ids)s, E'\x1f'), %(boot_orders)b, %(seqs)b,
        %(newest_ms)b, string_to_array(%(pasts)s, E'\x1f'), %(at_ms)b, %(skew_ms)b,
        string_to_array(%(readings)s, E'\x1f'), string_to_array(%(memories)s, E'\x1f'),
        string_to_array(%(freshness)s, E'\x1f'),
        string_to_array(%(behind)s, E'\x1f'), %(starts)b, %(lengths)b)
    AS fresh (node_id, boot_id, boot_order, seq, newest_ms, past, at_ms, skew_ms, readings, memory,
        freshness, behind, start, length),
    (SELECT %(content)b::bytea AS content) AS flat
WHERE latest.node_id = fresh.node_id
"""
_READINGS: Final = "node_id, gpu_readings, gpus_behind, boot_id, seq, at, received_at FROM node_latest"
_READINGS_OF: Final = rf"SELECT {_READINGS} WHERE node_id = ANY(string_to_array(%(ids)s, E'\x1f'))"
_READINGS_ALONGSIDE: Final = f"""
SELECT {_READINGS} WHERE node_id = (SELECT node_id FROM gpus WHERE uuid = %(uuid)s)
"""  # noqa: S608  # of our own pieces
_encode: Final = msgspec.json.Encoder().encode
_ADD_SIGNALS: Final = """
INSERT INTO gpu_signals AS signal
    (node_id, signal_id, gpu_uuid, kind, source, code, at, received_at, text, "values", is_open,
        is_alarming, judged_at, judge_fault)
SELECT node_id, signal_id, gpu_uuid, kind, source, code, to_timestamp(at_ms / 1000.0), received_at, text,
    "values"::jsonb, is_open, is_alarming, CASE WHEN judge_fault IS NOT NULL THEN received_at END, judge_fault
FROM jsonb_to_recordset(%(rows)s::jsonb) AS one (node_id text, signal_id text, gpu_uuid text, kind text, source text,
    code int, at_ms bigint, received_at timestamptz, text text, "values" text, is_open boolean, is_alarming boolean,
    judge_fault text)
ON CONFLICT (node_id, signal_id) DO UPDATE SET is_open = false WHERE signal.is_open AND NOT excluded.is_open
"""


class LockedNode(Struct, frozen=True):
    """The facts of a node while a flush has its row locked: its newest report, its heartbeats' boots, its own GPUs."""

    node_id: str
    boot_id: str | None
    boot_order: int
    seq: int
    newest_ms: int
    past_boot_ids: tuple[str, ...]
    heartbeat_boot_id: str | None
    past_heartbeat_boots: frozenset[str]
    judge_memory: dict[str, Any] | None
    freshness: str | None
    is_silence_stated: bool
    gpu_uuids: frozenset[str]


_MODEL_OF: Final = "SELECT model FROM gpus WHERE uuid = %(uuid)s"
_STATE_OF: Final = """
SELECT t.values FROM gpu_signals AS t
WHERE t.gpu_uuid = %(uuid)s AND t.at > %(since)s AND t.kind = 'gpu_state' ORDER BY t.at DESC LIMIT 1
"""


def dead_keys(connection: Connection, key_ids: Iterable[str], now: datetime) -> set[str]:
    """Return which of these keys are invalid now. Note the use of the others, to the minute."""
    odd = connection.exec_driver_sql(_ODD_KEYS, {"ids": joined_texts(key_ids), "now": now}).all()
    unnoted = [key_id for key_id, is_dead in odd if not is_dead]
    if unnoted:
        connection.exec_driver_sql(_NOTE_USE, {"ids": unnoted, "now": now})
    return {key_id for key_id, is_dead in odd if is_dead}


def add_nodes(connection: Connection, node_ids: Sequence[str]) -> None:
    """Add a row to lock for each node that has none yet."""
    connection.exec_driver_sql(_ADD_NODES, {"ids": list(node_ids)})


def lock_nodes(connection: Connection, node_ids: Sequence[str]) -> dict[str, LockedNode]:
    """Return the nodes that have a row, locked in the order of their ids until the commit."""
    rows = connection.exec_driver_sql(_LOCK_NODES, {"ids": joined_texts(node_ids)})
    return {
        row[0]: LockedNode(
            node_id=row[0],
            boot_id=row[1],
            boot_order=row[2],
            seq=row[3],
            newest_ms=row[4],
            past_boot_ids=tuple(row[5] or ()),
            heartbeat_boot_id=row[6],
            past_heartbeat_boots=frozenset(row[7] or ()),
            judge_memory=row[8],
            freshness=row[9],
            is_silence_stated=row[10],
            gpu_uuids=frozenset((row[11] or "").split("\x1f")),
        )
        for row in rows
    }


def owners_of(connection: Connection, uuids: Iterable[str]) -> dict[str, str]:
    """GPU → the node that it is enrolled on."""
    rows = connection.exec_driver_sql(_OWNERS, {"uuids": sorted(uuids)})
    return {row[0]: row[1] for row in rows}


def already_seen(connection: Connection, identities: Sequence[tuple[str, str, int]]) -> set[int]:
    """Return the positions of the identities (node, boot, seq) that have come before."""
    parameters = {
        "node_ids": joined_texts(node_id for node_id, _, _ in identities),
        "boot_ids": joined_texts(boot_id for _, boot_id, _ in identities),
        "seqs": packed_ints([seq for _, _, seq in identities]),
    }
    return set(connection.exec_driver_sql(_SEEN, parameters).scalars())


class BlockRow(Struct, frozen=True):
    node_id: str
    boot_id: str
    seq: int
    at_ms: int
    schema: int
    content: bytes


def add_blocks(connection: Connection, blocks: Sequence[BlockRow], now: datetime) -> None:
    parameters = {
        "node_ids": joined_texts(block.node_id for block in blocks),
        "boot_ids": joined_texts(block.boot_id for block in blocks),
        "seqs": packed_ints([block.seq for block in blocks]),
        "at_ms": packed_ints([block.at_ms for block in blocks]),
        "schemas": packed_ints([block.schema for block in blocks]),
        "now": now,
        **_joined([block.content for block in blocks]),
    }
    connection.exec_driver_sql(_ADD_BLOCKS, parameters)


def _joined(contents: Sequence[bytes]) -> dict[str, Any]:
    """One value for all, and where in it each begins, counted from 1."""
    lengths = [len(content) for content in contents]
    starts = list(accumulate(lengths[:-1], initial=1))
    return {"content": b"".join(contents), "starts": packed_ints(starts), "lengths": packed_ints(lengths)}


class NodeRow(Struct, frozen=True):
    """The newest report of a node in this group, and its GPUs after it (``control.telemetry.node_readings``).

    ``readings``, ``past``, ``memory``, ``freshness`` and ``behind``: JSON; ``null`` for none.
    """

    node_id: str
    boot_id: str
    boot_order: int
    seq: int
    newest_ms: int
    past: str
    at_ms: int
    skew_ms: int
    readings: str
    memory: str
    freshness: str
    behind: str
    content: bytes


def move_nodes(connection: Connection, nodes: Sequence[NodeRow], now: datetime, silent_after: timedelta) -> None:
    """Move the nodes' latest state. ``silent_after``: the time without a report after which an agent is silent."""
    texts = {
        "node_ids": "node_id",
        "boot_ids": "boot_id",
        "pasts": "past",
        "readings": "readings",
        "memories": "memory",
        "freshness": "freshness",
        "behind": "behind",
    }
    numbers = {"boot_orders": "boot_order", "seqs": "seq", "newest_ms": "newest_ms", "at_ms": "at_ms"}
    parameters: dict[str, Any] = {"now": now, "skew_ms": packed_ints([node.skew_ms for node in nodes])}
    parameters |= {"overdue": now + silent_after, "overdue_soon": now + silent_after / 2}
    parameters |= _joined([node.content for node in nodes])
    parameters |= {name: joined_texts(getattr(node, column) for node in nodes) for name, column in texts.items()}
    parameters |= {name: packed_ints([getattr(node, column) for node in nodes]) for name, column in numbers.items()}
    connection.exec_driver_sql(_MOVE_NODES, parameters)


class ReadingsRow(Struct, frozen=True):
    """The stored readings of a node's GPUs, and the newest report of the node.

    ``control.telemetry.node_readings`` packs and unpacks them.
    """

    node_id: str
    content: bytes
    behind: dict[str, Any] | None
    boot_id: str | None
    seq: int
    at: datetime | None
    received_at: datetime | None


def readings_of(connection: Connection, node_ids: Iterable[str]) -> dict[str, ReadingsRow]:
    """Return the readings by node, for nodes that have a row."""
    rows = connection.exec_driver_sql(_READINGS_OF, {"ids": joined_texts(node_ids)})
    return {row[0]: ReadingsRow(*row) for row in rows}


def model_of(connection: Connection, gpu_uuid: str) -> str:
    """Return the model of an enrolled GPU; empty where it is not enrolled."""
    model = connection.exec_driver_sql(_MODEL_OF, {"uuid": gpu_uuid}).scalar_one_or_none()
    return "" if model is None else str(model)


def state_of(connection: Connection, gpu_uuid: str, since: datetime) -> dict[str, Any]:
    """Return the newest ``domain.evidence.state_readings.GPU_STATE`` that its agent reported since then; empty without
    one.
    """
    return connection.exec_driver_sql(_STATE_OF, {"uuid": gpu_uuid, "since": since}).scalar_one_or_none() or {}


def readings_alongside(connection: Connection, gpu_uuid: str) -> ReadingsRow | None:
    """Return the readings of the node on which this GPU is enrolled."""
    row = connection.exec_driver_sql(_READINGS_ALONGSIDE, {"uuid": gpu_uuid}).one_or_none()
    return None if row is None else ReadingsRow(*row)


def add_signals(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add signals.

    ``judge_fault``: of one that this release cannot judge, which is stored as judged; most have none.

    One statement serves any number: a storm brings thousands within a second. A signal that occurs twice among ``rows``
    is the first, and is over once any of them reports its end.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["node_id"], row["signal_id"]
        known = found.setdefault(key, dict(row))
        known["is_open"] = known["is_open"] and row["is_open"]
    connection.exec_driver_sql(_ADD_SIGNALS, {"rows": _encode(list(found.values())).decode()})
