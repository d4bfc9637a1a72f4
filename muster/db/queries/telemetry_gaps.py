"""The statement that stores gap markers: the reports that an agent had to drop, by its own count."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

_ADD_GAPS: Final = """
INSERT INTO telemetry_gaps (node_id, boot_id, report_seq, ordinal, priority, first_seq, last_seq, num_reports, from_at,
    until_at, why, received_at)
VALUES (%(node_id)s, %(boot_id)s, %(report_seq)s, %(ordinal)s, %(priority)s, %(first_seq)s, %(last_seq)s,
    %(num_reports)s, to_timestamp(%(from_ms)s / 1000.0), to_timestamp(%(until_ms)s / 1000.0), %(why)s, %(received_at)s)
ON CONFLICT DO NOTHING
"""


def add_gaps(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add gap markers; one that is there stays."""
    connection.exec_driver_sql(_ADD_GAPS, [dict(row) for row in rows])
