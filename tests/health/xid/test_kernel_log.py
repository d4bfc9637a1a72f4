"""Lines of the kernel log: which hold an XID or SXid, of which GPU, and what no line can do to the reader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.xid.kernel_log import KernelLogReader, LogFault, LogKind

UUID = "GPU-0e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e"
LOST = "GPU has fallen off the bus."


def faults(*lines: str) -> list[LogFault]:
    reader = KernelLogReader()
    return [fault for line in lines for fault in reader.read(line)]


def reported(*lines: str) -> list[tuple[str, int, str]]:
    return [(fault.kind.value, fault.code, fault.pci) for fault in faults(*lines)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "[111111111.111] NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, " + LOST,
            ("xid", 79, "0000:05:00"),
        ),
        (f"NVRM: Xid (PCI:0000:01:00): 79, {LOST}", ("xid", 79, "0000:01:00")),
        ("[...] NVRM: Xid (0000:03:00): 14, Channel 00000001", ("xid", 14, "0000:03:00")),
        ("NVRM: Xid (PCI:00000000:9B:00.0): 119, pid=1, name=a, Timeout after 6s", ("xid", 119, "0000:9b:00.0")),
        ("NVRM: Xid (PCI:0000:65:00 GPU-I:02): 94, pid=7, name=python3, Contained", ("xid", 94, "0000:65:00")),
        ("<4>1 2026-08-22T10:11:12Z gpu7 kernel - - - NVRM: Xid (PCI:0009:01:00): 154, x", ("xid", 154, "0009:01:00")),
        ("Aug 22 10:11:12 gpu7 kernel: [ 12.5] NVRM: Xid (PCI:0000:c1:00): 48, x", ("xid", 48, "0000:c1:00")),
        ("NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", ("xid", 79, "0000:29:00")),
        ("NVRM: GPU 18:00.0: GPU has fallen off the bus.", ("xid", 79, "0000:18:00")),
        (
            "[131453.740743] nvidia-nvswitch0: SXid (PCI:0000:a9:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            ("sxid", 20034, "0000:a9:00.0"),
        ),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 11111, Data {0x5061, 0x1}", ("sxid", 11111, "0000:05:00.0")),
        ("\x1b[1;31mNVRM: Xid (PCI:0000:\x1b[0m05:00): 31, x\x07", ("xid", 31, "0000:05:00")),
        ("\x00\ufffd\x07NVRM: Xid (PCI:0000:05:00): 9999, not known to anybody", ("xid", 9999, "0000:05:00")),
    ],
)
def test_every_shape_of_a_line_is_read(line: str, expected: tuple[str, int, str]) -> None:
    assert reported(line) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Regular log content without Xid errors",
        "NVRM: Xid error: xyz, invalid data",
        "NVRM: Xid (invalid): some error",
        "NVRM: Xid (PCI:0000:05:00): xyz, no number",
        "nvidia-nvswitch0: SXid (PCI:0000:00:00.0): xyz, Fatal error",
        "NVRM: The NVIDIA GPU invalid-bdf.0 fallen off the bus",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06",
    ],
)
def test_other_lines_give_nothing(line: str) -> None:
    assert reported(line) == []


def test_a_sentence_over_three_lines_is_one_fault_of_the_gpu_it_began_with() -> None:
    sentence = (
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert reported(*sentence) == [("xid", 79, "0000:18:00")]
    assert reported(*sentence[1:]) == []
    assert reported(" ".join(sentence)) == [("xid", 79, "0000:18:00")]


def test_a_sentence_that_does_not_end_is_forgotten() -> None:
    begun = "NVRM: The NVIDIA GPU 0000:18:00.0"
    others = [f"NVRM: line {number}" for number in range(3)]
    assert reported(begun, *others, "NVRM: fallen off the bus and is not responding to commands.") == []


def test_other_programs_lines_may_come_between() -> None:
    begun, ended = "NVRM: The NVIDIA GPU 0000:18:00.0", "NVRM: fallen off the bus and is not responding to commands."
    assert reported(begun, *["eth0: link up"] * 9, ended) == [("xid", 79, "0000:18:00")]


def test_two_faults_of_one_line_are_two() -> None:
    one = "NVRM: Xid (PCI:0000:05:00): 63, Row Remapper: x; NVRM: Xid (PCI:0000:06:00): 48, y"
    assert reported(one) == [("xid", 63, "0000:05:00"), ("xid", 48, "0000:06:00")]
    assert [fault.text for fault in faults(one)] == ["Row Remapper: x;", "y"]


def test_what_ran_and_what_the_driver_stated_are_distinguished() -> None:
    (fault,) = faults("NVRM: Xid (PCI:0018:01:00): 145, pid=876767, name=ray::WorkerDict, RLW_RXPIPE Nonfatal XC0")
    assert (fault.pid, fault.process, fault.text) == (876767, "ray::WorkerDict", "RLW_RXPIPE Nonfatal XC0")
    (nobody,) = faults("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, gone")
    assert (nobody.pid, nobody.process, nobody.text) == (None, None, "gone")


def test_the_driver_names_the_gpu_at_an_address_once_and_it_is_remembered() -> None:
    named = f"NVRM: GPU at PCI:0000:05:00: {UUID}"
    found = faults(named, "NVRM: Xid (PCI:0000:05:00): 48, x", "NVRM: Xid (PCI:0000:06:00): 48, x")
    assert [fault.gpu_uuid for fault in found] == [UUID, None]


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("[171167.620236] NVRM: Xid (PCI:0000:05:00): 48, x", 171167.620236),
        ("[    0.500000] NVRM: Xid (PCI:0000:05:00): 48, x", 0.5),
        ("3,1234,5678901,-;NVRM: Xid (PCI:0000:05:00): 48, x", 5.678901),
        ("NVRM: Xid (PCI:0000:05:00): 48, x", None),
        ("[Sat Aug 22 10:11:12 2026] NVRM: Xid (PCI:0000:05:00): 48, x", None),
    ],
)
def test_the_kernels_clock_is_read_where_the_line_has_it(line: str, seconds: float | None) -> None:
    assert [fault.since_boot_s for fault in faults(line)] == [seconds]


def test_a_megabyte_is_read_and_its_words_are_cut() -> None:
    (fault,) = faults("x" * 1_000_000 + "NVRM: Xid (PCI:0000:05:00): 31, " + "y" * 1_000_000)
    assert (fault.kind, fault.code, len(fault.text)) == (LogKind.XID, 31, 1000)


@given(st.lists(st.text(st.characters(), max_size=80).map(lambda words: "NVRM: Xid (PCI:0000:05:00): " + words)))
def test_no_line_breaks_the_reader(lines: list[str]) -> None:
    for fault in faults(*lines):
        assert fault.pci == "0000:05:00"
        assert fault.text.isprintable()
