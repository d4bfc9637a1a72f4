"""Raw records of /dev/kmsg, by the corpus ``kmsg_records.txt``: several lines, fragments, escapes, dictionaries."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from agents.kernel_log.kernel_log import MAX_EVENTS, KernelLog
from agents.kernel_log.records import MAX_TEXT, RecordJoiner, read_record
from agents.probes.interface import ProbeEvent
from health.xid.kernel_log import KernelLogReader
from muster.domain.ids import GpuUuid
from tests.agents.kernel_log.test_kernel_log import Kernel

CORPUS: Final = Path(__file__).with_name("kmsg_records.txt")


@dataclass(slots=True)
class Block:
    """Records of one log, and the events that they give, as text."""

    name: str
    records: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)


def blocks() -> Iterator[Block]:
    for text in CORPUS.read_text(encoding="utf-8").split("\n\n")[1:]:
        comment, *lines = text.strip("\n").splitlines()
        block = Block(comment.removeprefix("# ").rstrip("."))
        for line in lines:
            if line.startswith("= "):
                block.expected.append(line.removeprefix("= "))
            elif line.startswith(" "):
                block.records[-1] += f"\n{line}"
            else:
                block.records.append(line)
        yield block


BLOCKS: Final = list(blocks())


def words_of(event: ProbeEvent) -> str:
    code = "-" if event.code is None else str(event.code)
    return f"{event.kind} {code} {(event.gpu_uuid or '-').removeprefix('GPU-')} {event.text}"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def following(kernel: Kernel, position_file: Path | None = None) -> KernelLog:
    return KernelLog(
        lambda pci: GpuUuid(f"GPU-{pci.partition('.')[0]}"), "boot-1", path=kernel.path, position_file=position_file
    )


@pytest.mark.parametrize("block", BLOCKS, ids=[each.name for each in BLOCKS])
def test_each_block_of_the_corpus_gives_its_events(kernel: Kernel, block: Block) -> None:
    with following(kernel) as log:
        for record in block.records:
            kernel.write(f"{record}\n".encode())
        assert [words_of(event) for event in log.events(5)] == block.expected


def test_the_whole_corpus_is_one_log_that_is_read_once(kernel: Kernel, tmp_path: Path) -> None:
    position = tmp_path / "kernel_log.json"
    told: list[list[str]] = []
    for _ in range(2):
        for block in BLOCKS:
            for record in block.records:
                kernel.write(f"{record}\n".encode())
        with following(kernel, position) as log:
            told.append([words_of(event) for event in log.events(5)])
            log.keep_position()
    assert told == [[line for block in BLOCKS for line in block.expected], []]


@pytest.mark.parametrize("block", BLOCKS[:2] + BLOCKS[3:5], ids=[each.name for each in BLOCKS[:2] + BLOCKS[3:5]])
def test_a_raw_record_that_is_piped_into_the_command_is_read_alike(block: Block) -> None:
    faults = [fault for record in block.records for fault in KernelLogReader().read(record.partition("\n")[0])]
    assert [f"{fault.kind} {fault.code} {fault.pci} {fault.text}" for fault in faults] == block.expected


def test_a_record_waits_for_its_fragments_and_no_longer_than_the_log_has_more() -> None:
    joiner = RecordJoiner()
    records = [
        b"3,1,5,-;NVRM: Xid (PCI:0000:05:00): 62,",
        b"3,2,5,c; halt",
        b"3,4,5,c; of another line: record 3 is lost",
        b"3,5,5,-;end",
    ]
    given = [joiner.push(record) for raw in records if (record := read_record(raw)) is not None]
    whole = [(each.text, each.sequence, each.last_sequence) for each in [*given, joiner.flush()] if each is not None]
    assert whole == [
        ("NVRM: Xid (PCI:0000:05:00): 62, halt", 1, 2),
        (" of another line: record 3 is lost", 4, 4),
        ("end", 5, 5),
    ]
    assert joiner.flush() is None


def test_fragments_without_end_fill_no_memory() -> None:
    joiner = RecordJoiner()
    for number in range(100):
        record = read_record(f"3,{number},5,{'c' if number else '-'};".encode() + b"x" * 1000)
        assert record is not None
        assert joiner.push(record) is None
    whole = joiner.flush()
    assert whole is not None
    assert (len(whole.text), whole.last_sequence) == (MAX_TEXT, 99)


def test_a_record_that_a_storm_leaves_unread_is_given_in_the_next_turn(kernel: Kernel) -> None:
    """The reader takes one record ahead, to know that no fragment follows: it must not lose it."""
    with following(kernel) as log:
        for number in range(1, MAX_EVENTS + 3):
            kernel.write(f"3,{number},{number},-;NVRM: Xid (PCI:0000:05:00): 31, x{number}\n".encode())
        texts = [event.text for _ in range(2) for event in log.events(0)]
    assert texts == [f"x{number}" for number in range(1, MAX_EVENTS + 3)]
