"""The newest readings of a node's GPUs in the node's own row, in place of a row a GPU.

Packed as in ``control.telemetry.node_readings``. The table ``gpu_latest`` is emptied into it and dropped here, since
nothing has been released yet. The downgrade makes it again, from the packed readings.
"""

import struct
from typing import Any, Final

from alembic import op
from sqlalchemy import text

revision = "20261122_1035"
down_revision = "20261122_1034"
branch_labels = None
depends_on = None

# A page holds one node's row and has room for its next versions, which then touch no index; and a row of eight GPUs is
# in the page itself, uncompressed.
ADD: Final = """
ALTER TABLE node_latest
    ADD COLUMN gpus_behind jsonb,
    ADD COLUMN gpu_readings bytea DEFAULT ''::bytea NOT NULL,
    ALTER COLUMN gpu_readings SET STORAGE EXTERNAL,
    SET (fillfactor = 40, toast_tuple_target = 8160);
"""
PACK: Final = r"""
WITH widths AS (SELECT node_id, max(cardinality("values")) AS width FROM gpu_latest GROUP BY node_id),
metric_values AS (
    SELECT node_id,
        string_agg(float8send(coalesce("values"[metric], 'NaN')), ''::bytea ORDER BY metric, gpu_uuid) AS packed
    FROM gpu_latest JOIN widths USING (node_id), generate_series(1, width) AS metric GROUP BY node_id
),
gpus AS (
    SELECT gpu.node_id, count(*) AS num, width,
        string_agg(CASE WHEN is_lost THEN '\x01'::bytea ELSE '\x00'::bytea END, ''::bytea ORDER BY gpu_uuid) AS lost,
        convert_to(string_agg(gpu_uuid, E'\x1f' ORDER BY gpu_uuid), 'UTF8') AS names,
        jsonb_object_agg(gpu_uuid, jsonb_build_array(gpu.boot_id, gpu.seq,
            round(extract(epoch FROM gpu.at) * 1000)::bigint, round(extract(epoch FROM gpu.received_at) * 1000)::bigint)
        ) FILTER (WHERE (gpu.boot_id, gpu.seq) IS DISTINCT FROM (node.boot_id, node.seq)) AS behind
    FROM gpu_latest AS gpu JOIN widths USING (node_id) JOIN node_latest AS node USING (node_id)
    GROUP BY gpu.node_id, width
)
UPDATE node_latest AS node SET gpus_behind = gpus.behind,
    gpu_readings = int2send(num::int2) || int2send(width::int2) || coalesce(packed, '') || lost || names
FROM gpus LEFT JOIN metric_values USING (node_id) WHERE node.node_id = gpus.node_id;
"""
DROP: Final = "DROP TABLE gpu_latest;"

MAKE_AGAIN: Final = """
CREATE TABLE gpu_latest (
    gpu_uuid text NOT NULL,
    node_id text NOT NULL,
    boot_id text NOT NULL,
    boot_order bigint NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    schema smallint NOT NULL,
    "values" double precision[] NOT NULL,
    is_lost boolean NOT NULL,
    CONSTRAINT pk_gpu_latest PRIMARY KEY (gpu_uuid),
    CONSTRAINT fk_gpu_latest_gpu_uuid FOREIGN KEY (gpu_uuid) REFERENCES gpus (uuid)
) WITH (fillfactor = 60);
"""
PACKED: Final = "SELECT node_id, gpu_readings FROM node_latest WHERE gpu_readings <> ''"
# Its own report is stated by the row, or by the entries in ``gpus_behind``.
UNPACK: Final = """
INSERT INTO gpu_latest
SELECT gpus.uuid, node.node_id, coalesce(gpus_behind -> uuid ->> 0, boot_id),
    CASE WHEN coalesce(gpus_behind -> uuid ->> 0, boot_id) = boot_id THEN boot_order ELSE 0 END,
    coalesce((gpus_behind -> uuid ->> 1)::bigint, seq),
    coalesce(to_timestamp((gpus_behind -> uuid ->> 2)::bigint / 1000.0), at),
    coalesce(to_timestamp((gpus_behind -> uuid ->> 3)::bigint / 1000.0), received_at),
    1, :values, :is_lost
FROM node_latest AS node JOIN gpus ON gpus.uuid = :uuid WHERE node.node_id = :node_id
"""
REMOVE: Final = """
ALTER TABLE node_latest
    DROP COLUMN gpu_readings,
    DROP COLUMN gpus_behind,
    SET (fillfactor = 60),
    RESET (toast_tuple_target);
"""


def upgrade() -> None:
    for script in (ADD, PACK, DROP):
        op.execute(script)


def downgrade() -> None:
    op.execute(MAKE_AGAIN)
    connection = op.get_bind()
    for node_id, content in connection.execute(text(PACKED)).all():
        connection.execute(text(UNPACK), [{"node_id": node_id, **gpu} for gpu in _gpus_in(content)])
    op.execute(REMOVE)


def _gpus_in(content: bytes) -> list[dict[str, Any]]:
    num, width = struct.unpack_from(">HH", content)
    values = struct.unpack_from(f">{num * width}d", content, 4)
    lost_at = 4 + 8 * num * width
    names = content[lost_at + num :].decode().split("\x1f")
    return [
        {"uuid": name, "values": list(values[place::num]), "is_lost": bool(content[lost_at + place])}
        for place, name in enumerate(names)
    ]
