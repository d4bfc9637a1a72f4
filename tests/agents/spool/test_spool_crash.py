"""Killed at any byte, or damaged at any: what is whole is read, what is not is counted, and nothing else suffers."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.spool.records import Damage, Found, Record, encode, scan
from agents.spool.spool import Spool
from tests.agents.reports import BOOT, Clock, event, sample
from tests.scaled import examples

NUM = 12


def _written(folder: Path) -> Path:
    spool = Spool(folder, monotonic_ms=lambda: 0)
    for seq in range(1, NUM + 1):
        spool.append(sample(seq * 16), "metrics")
    spool.close()
    (path,) = folder.glob("*.seg")
    return path


def _survivors(folder: Path) -> tuple[set[int], int]:
    spool = Spool(folder, monotonic_ms=lambda: 0)
    found = set()
    while (entry := spool.oldest()) is not None:
        assert spool.content_of(entry) is not None
        found.add(entry.seq // 16)
        spool.acknowledge(entry.identity)
    gap = spool.gap_report(0)
    counted = 0 if gap is None else sum(marker.num_reports for marker in gap.gaps)
    spool.append(event(10_000), "events")
    spool.close()
    return found, counted


@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_file_cut_at_any_byte_keeps_every_record_before_the_cut(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = _written(Path(name))
        content = path.read_bytes()
        length = len(content) // NUM
        cut = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:cut])
        found, counted = _survivors(Path(name))
        ends = [item.offset + item.length for item in scan(content) if isinstance(item, Found)]
        assert found == {index + 1 for index, end in enumerate(ends) if end <= cut}
        assert counted == (0 if cut in {0, *ends} else 1), (cut, length)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_a_flipped_bit_costs_one_record_which_is_counted_once(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = _written(Path(name))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        found, counted = _survivors(Path(name))
        assert len(found) == NUM - 1
        assert counted == 1
        again, once = _survivors(Path(name))
        assert again == {625}, "the event written since; nothing comes back"
        assert once == counted, "not counted again by the next life"


@settings(max_examples=examples(100))
@given(content=st.binary(max_size=400), tail=st.binary(max_size=100))
def test_whatever_stands_around_a_record_it_is_found(content: bytes, tail: bytes) -> None:
    frame = encode(Record("events", BOOT, 5, 6, b'{"seq":5}'))
    found = [item for item in scan(content + frame + tail) if isinstance(item, Found)]
    assert [item.record.seq for item in found] == [5]
    covered = sum(item.length for item in scan(content + frame + tail))
    assert covered == len(content) + len(frame) + len(tail)
    assert all(isinstance(item, Found | Damage) for item in scan(content))


WRITER = """
import sys, time
from pathlib import Path
import structlog
structlog.configure(logger_factory=structlog.WriteLoggerFactory(sys.stderr))
from agents.spool.spool import Spool, SpoolLimits
from tests.agents.reports import event, sample
spool = Spool(Path(sys.argv[1]), SpoolLimits(max_bytes=200_000, segment_bytes=10_000), monotonic_ms=lambda: 0)
first = seq = spool.newest_seq("boot-1") // 16 + 1
while seq < first + 250:  # of six lives no more than the spool has room for
    if seq % 5:
        spool.append(sample(seq * 16), "metrics")
    else:
        spool.append(event(seq * 16), "events")
        print(seq, flush=True)
    seq += 1
time.sleep(600)
"""


def test_a_writer_killed_at_any_moment_loses_no_event_that_it_had_kept(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311  # a test that repeats
    kept: set[int] = set()
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "spool")], stdout=subprocess.PIPE, text=True, env=environment
        ) as writer:
            assert writer.stdout is not None
            kept.add(int(writer.stdout.readline()))
            time.sleep(chance.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            kept.update(int(line) for line in writer.stdout.read().splitlines() if line)
    clock = Clock()
    spool = Spool(tmp_path / "spool", monotonic_ms=clock.monotonic_ms)
    found = set()
    while (entry := spool.oldest("events")) is not None:
        found.add(entry.seq // 16)
        spool.acknowledge(entry.identity)
    assert kept
    assert kept <= found
