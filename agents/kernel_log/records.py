r"""Records of /dev/kmsg: one a read, its head and its text (Linux: ``Documentation/ABI/testing/dev-kmsg``).

A record as the kernel gives it::

    3,1024,5140900,-,caller=T7;NVRM: The NVIDIA GPU 0000:18:00.0\x0aNVRM: (PCI ID: 10de:2901) installed …
     SUBSYSTEM=pci
     DEVICE=+pci:0000:18:00.0

The head is priority, number, microseconds since the boot, flag, and fields of later kernels. The text is one line:
bytes that are no printable ASCII, line breaks and backslashes stand in it as ``\xNN``. Lines that begin with a blank
are the dictionary, which is skipped.

The flag ``c`` (and ``+`` before Linux 4.10) marks a fragment: the text continues that of the record before.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from health import host_log
from health.nic_log import NIC_LINE_BEGINNINGS

DRIVERS: Final = ("NVRM: ", "nvidia-nvswitch", *NIC_LINE_BEGINNINGS, *host_log.HOST_LINE_BEGINNINGS)
MAX_TEXT: Final = 16 << 10
"""Characters of a text that are kept, with all of its fragments: a longer one is cut."""
_TAGGED: Final = re.compile(r".{1,15}\[\d{1,10}\]: ", re.ASCII | re.DOTALL)
"""A message of the kernel about a process, which begins with the name that the process gave itself."""
_MOST_DIGITS: Final = 19
_FACILITY_BITS: Final = 3


@dataclass(frozen=True, slots=True)
class KmsgRecord:
    """One record. ``text``: as the kernel escaped it. ``last_sequence``: the number of its last fragment."""

    priority: int
    sequence: int
    head: str
    text: str
    last_sequence: int
    is_fragment: bool = False

    @property
    def is_kernels(self) -> bool:
        """Return whether the kernel wrote it: programs that write into /dev/kmsg have another facility."""
        return self.priority >> _FACILITY_BITS == 0


def read_record(raw: bytes) -> KmsgRecord | None:
    """Return the record in the bytes of one read; None where its head is malformed."""
    first = raw.decode("utf-8", "replace").partition("\n")[0]
    head, separator, text = first.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not all(map(_is_number, fields[:2])):
        return None
    sequence = int(fields[1])
    return KmsgRecord(
        priority=int(fields[0]),
        sequence=sequence,
        head=head,
        text=text[:MAX_TEXT],
        last_sequence=sequence,
        is_fragment=fields[3:4] in (["c"], ["+"]),
    )


class RecordJoiner:
    """Joiner of fragments: a record is given once it is known that no fragment of it follows.

    The first fragment of a line has the flag ``c`` before Linux 4.10, all but the first since. So a record with that
    flag is joined only if it directly follows a record of its priority, and begins no line of a driver.
    """

    def __init__(self) -> None:
        self._waiting: KmsgRecord | None = None

    def push(self, record: KmsgRecord) -> KmsgRecord | None:
        """Return the record before, which is whole now; None where there is none or ``record`` was a fragment of it."""
        before = self._waiting
        if before is not None and self._continues(before, record):
            text = (before.text + record.text)[:MAX_TEXT]
            self._waiting = replace(before, text=text, last_sequence=record.last_sequence)
            return None
        self._waiting = record
        return before

    def flush(self) -> KmsgRecord | None:
        """Return the record that waits for fragments: the log holds no more."""
        before, self._waiting = self._waiting, None
        return before

    def _continues(self, before: KmsgRecord, record: KmsgRecord) -> bool:
        is_next = record.sequence == before.last_sequence + 1 and record.priority == before.priority
        return record.is_fragment and is_next and not record.text.startswith(DRIVERS)


def is_of_a_driver(lines: Sequence[str]) -> bool:
    """Return whether a message of the kernel is a driver's own: its name begins it, and no process tag follows.

    A process names itself, also with a line break. So "NVRM: a[7]: segfault at … in FILE" is about a process, whatever
    its file is named.
    """
    words = "\n".join(lines)
    return words.startswith(DRIVERS) and _TAGGED.match(words) is None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
