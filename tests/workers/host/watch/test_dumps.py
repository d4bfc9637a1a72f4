"""Dumps of NCCL's flight recorder: requested by the pipe of NCCL's monitor, read with bounds, joined by rank."""

import json
import os
import pickle
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from watch.forensics.judge import judge_hang
from watch.phases import Phase
from watch.reports import NCCL, Collective, Frame, HostReport, ProcessState, RankReport, StackSource
from workers.host.watch import dumps
from workers.host.watch.dumps import Dumps
from workers.host.watch.part import Part


def entry(number: int, *, state: object = "completed", group: str = "0", **fields: Any) -> dict[str, Any]:
    """Return an entry as torch 2.13 writes it over NCCL; it numbers what it has recorded."""
    return {
        "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 3245}], "record_id": number,
        "pg_id": 0, "process_group": (group, "default_pg"), "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[8]],
        "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": state == "completed",
        "timeout_ms": 600000, "is_p2p": False, **fields,
    }  # fmt: skip


def document(*entries: object, version: str = "2.10") -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": version, "pg_config": groups, "pg_status": {}, "entries": list(entries)}


def pickled(*entries: object, version: str = "2.10") -> bytes:
    return pickle.dumps(document(*entries, version=version), protocol=2)


WAITS = [entry(4), entry(5, state="started"), *(entry(number, state="scheduled") for number in range(6, 300))]
LAGS = [entry(3), entry(4)]


class Monitors:
    """Threads that do what NCCL's monitor does in each rank: make the pipe, and write a dump when it gets a byte."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_over = threading.Event()
        self.threads: list[threading.Thread] = []

    def start(self, rank: int, content: bytes | None) -> None:
        pipe = self.folder / f"rank_{rank}.pipe"
        os.mkfifo(pipe)
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.threads.append(threading.Thread(target=self._serve, args=(rank, descriptor, content)))
        self.threads[-1].start()

    def _serve(self, rank: int, descriptor: int, content: bytes | None) -> None:
        while not self.is_over.wait(0.01):
            if os.read(descriptor, 128) and content is not None:
                with (self.folder / f"rank_{rank}").open("wb", buffering=0) as file:  # in place, in pieces
                    file.write(content[: len(content) // 2])
                    file.write(content[len(content) // 2 :])
        os.close(descriptor)

    def stop(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join()


@pytest.fixture
def part(tmp_path: Path) -> Part:
    (tmp_path / "flight").mkdir()
    return Part(tmp_path, "node-a", (0, 1))


@pytest.fixture
def monitors(part: Part, monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitors]:
    monkeypatch.setattr(dumps, "DUMP_WAIT_S", 2.0)
    found = Monitors(part.folder / "flight")
    yield found
    found.stop()


def report(rank: int, **fields: Any) -> RankReport:
    return RankReport(rank, Phase.STEP, step=7, still_s=fields.pop("still_s", 30.0), **fields)


def taken(part: Part, *reports: RankReport) -> HostReport:
    asked = Dumps(part)
    asked.request(reports)
    ranks, notes = asked.joined(reports)
    return HostReport("node-a", 1, ranks, notes=notes)


def test_dumps_join_the_facts_of_their_ranks_in_the_verdict(part: Part, monitors: Monitors) -> None:
    monitors.start(0, pickled(*WAITS))
    monitors.start(1, json.dumps(document(*LAGS)).encode())
    stuck = (Frame("encode", "/app/bpe.py", 77),)
    own = (Collective("muster", 3, "save", state="completed", source="muster"),)
    begun_s = time.monotonic()
    found = taken(part, report(0), report(1, stack=stuck, stack_source=StackSource.SENSOR_THREAD, collectives=own))
    assert time.monotonic() - begun_s < 10.0
    assert found.notes == ()
    waits, lags = found.ranks
    assert (len(waits.collectives), len(lags.collectives)) == (64, 3)
    assert {each.source for each in waits.collectives} == {NCCL}
    assert {number: each.state for each in waits.collectives if (number := each.sequence) <= 6} == {
        4: "completed",
        5: "started",
        6: "scheduled",
    }, "the stuck one is kept, with what was enqueued next to it"
    assert waits.stack_source is StackSource.FLIGHT_RECORDER
    assert (lags.stack, lags.collectives[0]) == (stuck, own[0])
    verdict = judge_hang([found])
    assert (verdict.ranks, verdict.waiting) == ((1,), (0,))
    assert verdict.sentence.startswith("Rank 1 on node-a does not return from the program's own code in encode")
    assert verdict.sentence.endswith("; rank 0 waits in all_reduce, number 5 of group 0.")


class _Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch /tmp/was-run",)


MEMO_OF_GIGABYTES = b"\x80\x02}r\xff\xff\xff\x7f" + b"."
"""It asks C's unpickler for a table of 2 ** 32 entries."""
LONG_LIST = [7] * 200_000
BOMB = pickled(*(entry(number, input_sizes=[LONG_LIST]) for number in range(2000)))
"""Each entry names one list: a copy of it for each would take gigabytes."""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pickled(*LAGS)[:-30], "its pickle is cut off"),
        (json.dumps(document(*LAGS))[:-30].encode(), "it is cut off or damaged"),
        (b"", "it is no JSON"),
        (pickled(entry(4, state=_Runs())), "a dump holds plain values alone"),
        (MEMO_OF_GIGABYTES, "not used: "),
        (None, "none was written"),
    ],
    ids=["cut pickle", "cut json", "empty", "code", "memory", "missing"],
)
def test_a_dump_that_cannot_be_used_is_stated_and_leaves_the_verdict(
    part: Part, monitors: Monitors, content: bytes | None, words: str
) -> None:
    monitors.start(0, pickled(*WAITS))
    monitors.start(1, content)
    found = taken(part, report(0, still_s=0.0), report(1, still_s=0.0))  # the wait for rank 1 makes no dump of 0 old
    (note,) = found.notes
    assert note.startswith("rank 1 has no dump of the flight recorder: ")
    assert words in note
    assert found.ranks[1].collectives == ()
    verdict = judge_hang([found])
    assert verdict.ranks == (1,)
    assert verdict.evidence[-1] == f"node-a: {note}"


def test_long_lists_that_each_entry_names_take_no_memory(part: Part, monitors: Monitors) -> None:
    monitors.start(0, BOMB)
    found = taken(part, report(0))
    assert (found.notes, len(found.ranks[0].collectives)) == ((), 64)
    assert {each.sizes for each in found.ranks[0].collectives} == {()}


def test_a_dump_of_another_version_is_read_as_far_as_it_is_known(part: Part, monitors: Monitors) -> None:
    monitors.start(0, pickled(*WAITS, version="3.1"))
    found = taken(part, report(0))
    assert found.notes == ("dump of rank 0: its version is 3.1, and 2.x is known: known fields are read",)
    assert len(found.ranks[0].collectives) == 64


def test_a_dump_that_nccl_wrote_by_itself_counts_if_it_is_of_this_hang(part: Part) -> None:
    path = part.folder / "flight" / "rank_0"
    path.write_bytes(pickled(*WAITS))
    assert len(taken(part, report(0)).ranks[0].collectives) == 64
    before = time.time() - 40
    os.utime(path, (before, before))
    found = taken(part, report(0), report(1, process=ProcessState.STOPPED))
    assert found.ranks[0].collectives == ()
    assert found.notes == (), "without any dump of this hang there is none to miss"
    (part.folder / "flight" / "rank_1").write_bytes(pickled(*LAGS))
    assert [note.partition(": ")[2] for note in taken(part, report(0), report(1)).notes] == [
        "the one it has is older than its last progress"
    ]


def test_a_rank_that_cannot_answer_is_not_waited_for(part: Part, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dumps, "DUMP_WAIT_S", 600.0)
    (part.folder / "flight" / "rank_1").write_bytes(pickled(*LAGS))
    os.mkfifo(part.folder / "flight" / "rank_0.pipe")  # nothing reads it
    found = taken(part, report(0), report(1))
    assert found.notes == (
        "rank 0 has no dump of the flight recorder: its pipe takes no request: No such device or address",
    )


def test_a_job_without_nccl_has_no_dump_to_miss(part: Part) -> None:
    assert taken(part, report(0), report(1)).notes == ()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "its file cannot be opened"),
        (os.mkfifo, "its file is no plain file"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), dumps.MOST_BYTES + 1), "16,777,217 bytes"),
    ],
    ids=["link", "pipe", "long"],
)
def test_a_file_that_is_no_dump_is_not_opened(part: Part, make: Callable[[Path], None], words: str) -> None:
    (part.folder / "flight" / "rank_1").write_bytes(pickled(*LAGS))
    make(part.folder / "flight" / "rank_0")
    found = taken(part, report(0), report(1))
    (note,) = found.notes
    assert note.startswith("rank 0 has no dump")
    assert words in note
    assert len(found.ranks[1].collectives) == 2


def test_no_byte_goes_into_anything_but_a_pipe(part: Part, tmp_path: Path) -> None:
    other = tmp_path / "others"
    other.write_text("untouched")
    (part.folder / "flight" / "rank_0.pipe").symlink_to(other)
    (part.folder / "flight" / "rank_1.pipe").write_text("untouched")
    taken(part, report(0), report(1))
    assert [path.read_text() for path in (other, part.folder / "flight" / "rank_1.pipe")] == ["untouched"] * 2
    assert stat.S_ISREG((part.folder / "flight" / "rank_1.pipe").stat().st_mode)
