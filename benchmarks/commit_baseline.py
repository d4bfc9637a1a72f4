"""Least cost of a durable placement: bare psycopg, a gang's row and its GPUs taken, nothing else stored.

No locks in order, no admission, quota, fence, event, audit or wake-up: its time shows how fast this machine's
PostgreSQL, disk and driver are just now. Our time is given as a multiple of it, and our wait for the disk is scaled by
its wait.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import psycopg

from benchmarks.console_stage import clock_s

REFERENCE_WAIT_MS: Final = 0.2
"""Wait of one bare placement, without its CPU time, where the bars of ``benchmarks.commit`` were set. It took 0.91 ms
there; its CPU time is 0.24 of that of a whole placement, by which about a quarter of it was waiting.
"""
_TABLES: Final = """
CREATE TABLE bare_gangs (id int PRIMARY KEY, placed_at timestamptz NOT NULL);
CREATE TABLE bare_gpus (uuid text PRIMARY KEY, gang_id int);
INSERT INTO bare_gpus SELECT 'GPU-' || number, NULL FROM generate_series(0, %(num_gpus)s - 1) AS number;
"""
_TAKE: Final = "UPDATE bare_gpus SET gang_id = %s WHERE uuid = ANY(%s) AND gang_id IS NULL"


@dataclass(frozen=True, slots=True)
class Turn:
    """One durable placement, in ms. ``cpu_ms``: of this process and of its backend, which take turns."""

    wall_ms: float
    cpu_ms: float

    @property
    def computed_ms(self) -> float:
        return min(self.cpu_ms, self.wall_ms)

    @property
    def waited_ms(self) -> float:
        return self.wall_ms - self.computed_ms


class Clock:
    """Clock and CPU time since it was made; the CPU of a PostgreSQL backend counts with our own."""

    def __init__(self, backend_pid: int) -> None:
        self._backend_pid = backend_pid
        self._own_s, self._backend_s = time.process_time(), clock_s(backend_pid)
        self._began_s = time.perf_counter()

    def turn(self) -> Turn:
        wall_s = time.perf_counter() - self._began_s
        return Turn(wall_s * 1000, self.own_ms() + self.backend_ms())

    def own_ms(self) -> float:
        return (time.process_time() - self._own_s) * 1000

    def backend_ms(self) -> float:
        return (clock_s(self._backend_pid) - self._backend_s) * 1000


@contextlib.contextmanager
def bare_placements(conninfo: str, gangs: int, gpus: int) -> Iterator[Callable[[], Turn]]:
    """Give a function that places the next of ``gangs`` gangs of ``gpus`` GPUs."""
    with psycopg.connect(conninfo) as connection:
        with psycopg.ClientCursor(connection) as cursor:
            cursor.execute(_TABLES, {"num_gpus": gangs * gpus})
        connection.commit()
        numbers = iter(range(gangs))

        def place() -> Turn:
            gang = next(numbers)
            uuids = [f"GPU-{gang * gpus + slot}" for slot in range(gpus)]
            clock = Clock(connection.info.backend_pid)
            _place(connection, gang, uuids)
            return clock.turn()

        yield place


def _place(connection: psycopg.Connection, gang: int, uuids: list[str]) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO bare_gangs VALUES (%s, now())", (gang,), prepare=True)
        taken = connection.execute(_TAKE, (gang, uuids), prepare=True).rowcount
        if taken != len(uuids):
            message = f"{taken} of {len(uuids)} GPUs were free"
            raise RuntimeError(message)
