"""A search through a job's logs: bounded, continues where it stood, and sees no other job."""

from collections.abc import Sequence

import pytest

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import protocol
from control.jobs import jobs, log_search
from control.jobs.job_logs import EVERYTHING, LogFilter
from control.jobs.log_search import LogLine, Place, search
from muster.domain.ids import AttemptId, JobId
from muster.domain.job.log_search import Sought
from muster.wire.host import PROTOCOL_VERSION, LogBatch, LogChunk
from tests.fleet_factory import OPERATOR, Fleet, make_fleet
from tests.played_host import PlayedHost


class World:
    def __init__(self, units: UnitOfWorkFactory) -> None:
        self.units = units
        self.fleet: Fleet = make_fleet(units)
        self.host = PlayedHost(units, self.fleet.node_id, boot_id="boot-of-alpha")
        self.job_id = self.fleet.submit(shape={"gpus_per_node": 1, "ranks_per_node": 11})
        self.host.beat()
        self.fleet.cycle()
        self.attempt = self.fleet.attempts(self.job_id)[-1].attempt
        assert self.host.claim(self.attempt.id, self.attempt.fence).granted

    def print(self, text: bytes, *, stream: str = "0", piece: int = 7) -> None:
        """In pieces that end anywhere."""
        ends = range(0, len(text), piece)
        chunks = tuple(LogChunk(stream=stream, offset=begin, content=text[begin : begin + piece]) for begin in ends)
        for begin in range(0, len(chunks), 50):
            batch = LogBatch(protocol=PROTOCOL_VERSION, fence=self.attempt.fence, chunks=chunks[begin : begin + 50])
            with self.units.begin(self.host.principal, protocol.LOGS, quiet=True) as unit:
                protocol.store_logs(unit, AttemptId(self.attempt.id), batch)

    def search(
        self, text: str, wanted: LogFilter = EVERYTHING, *, after: Place | None = None, limit: int = 100
    ) -> tuple[Sequence[LogLine], Place | None]:
        with self.units.begin(OPERATOR, jobs.READ, dry_run=True, quiet=True) as unit:
            return search(unit, JobId(self.job_id), wanted, Sought(text), after=after, limit=limit)

    def walk(self, text: str, *, limit: int = 100) -> tuple[list[str], int]:
        """All lines, and how many searches it took."""
        place, said, times = None, [], 0
        while True:
            found, place = self.search(text, after=place, limit=limit)
            said += [f"{each.stream}: {each.line.text.decode()}" for each in found]
            times += 1
            if place is None:
                return said, times


@pytest.fixture
def world(units: UnitOfWorkFactory) -> World:
    return World(units)


def test_lines_are_found_across_pieces_stream_by_stream(world: World) -> None:
    world.print(b"step 1 loss 2.5\nstep 2 loss nan\nlast nan", stream="0")
    world.print(b"step 2 loss nan\n", stream="10")
    assert world.walk("nan") == (["0: step 2 loss nan", "0: last nan", "10: step 2 loss nan"], 1)
    found, place = world.search("nan", LogFilter(stream="10"))
    assert ([each.line.offset for each in found], place) == ([0], None)
    assert world.walk("never")[0] == []


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_search_goes_on_behind_the_last_line_that_it_found(world: World, limit: int) -> None:
    lines = [f"nan {number}" for number in range(6)]
    world.print("\n".join(lines).encode(), stream="0")
    world.print("\n".join(lines).encode() + b"\n", stream="1")
    said, _ = world.walk("nan", limit=limit)
    assert said == [f"{stream}: {line}" for stream in (0, 1) for line in lines]


def test_a_search_stops_after_its_stretch_and_goes_on_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "STRETCH_BYTES", 60)  # longer than a line: else it would never move
    world.print(b"a line that is longer than a stretch and has nan in it\nx\nnan again\n" * 3)
    said, times = world.walk("nan")
    assert said == ["0: a line that is longer than a stretch and has nan in it", "0: nan again"] * 3
    assert times > 3
