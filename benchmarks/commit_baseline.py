"""What a durable placement costs at the least: bare psycopg, a gang's row and its GPUs taken, nothing else kept.

No locks in order, no admission, quota, fence, event, audit or ring: what it takes says how fast this machine's
PostgreSQL, disk and driver are just now, and ours is told as a multiple of it.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import psycopg

_TABLES: Final = """
CREATE TABLE bare_gangs (id int PRIMARY KEY, placed_at timestamptz NOT NULL);
CREATE TABLE bare_gpus (uuid text PRIMARY KEY, gang_id int);
INSERT INTO bare_gpus SELECT 'GPU-' || number, NULL FROM generate_series(0, %(num_gpus)s - 1) AS number;
"""
_TAKE: Final = "UPDATE bare_gpus SET gang_id = %s WHERE uuid = ANY(%s) AND gang_id IS NULL"


@contextlib.contextmanager
def bare_placements(conninfo: str, gangs: int, gpus: int) -> Iterator[Callable[[], float]]:
    """A function that places the next of ``gangs`` gangs of ``gpus`` GPUs, and says how long that took, in ms."""
    with psycopg.connect(conninfo) as connection:
        with psycopg.ClientCursor(connection) as cursor:
            cursor.execute(_TABLES, {"num_gpus": gangs * gpus})
        connection.commit()
        numbers = iter(range(gangs))

        def place() -> float:
            gang = next(numbers)
            started = time.perf_counter()
            _place(connection, gang, [f"GPU-{gang * gpus + slot}" for slot in range(gpus)])
            return (time.perf_counter() - started) * 1000

        yield place


def _place(connection: psycopg.Connection, gang: int, uuids: list[str]) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO bare_gangs VALUES (%s, now())", (gang,), prepare=True)
        taken = connection.execute(_TAKE, (gang, uuids), prepare=True).rowcount
        if taken != len(uuids):
            message = f"{taken} of {len(uuids)} GPUs were free"
            raise RuntimeError(message)
