"""What a line of the kernel log is before its words: its colours and rubbish, and the kernel's clock in it."""

import re
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_KMSG: Final = re.compile(r"\d{1,4},\d+,(?P<us>\d{1,19}),[^;]{0,64};", re.ASCII)
_DMESG: Final = re.compile(r"\[\s*(?P<s>\d{1,12}\.\d{1,9})\]", re.ASCII)


def is_about_gpus(line: str) -> bool:
    """Whether the line can tell of a GPU or NVSwitch at all: one fast search that most lines of a log fail."""
    return "NVRM" in line or "SXid" in line


def plain(line: str) -> str:
    """Without colours; what is no text is a blank."""
    line = _COLOURS.sub("", line)
    return line if line.isprintable() else "".join(each if each.isprintable() else " " for each in line)


def seconds_since_boot(line: str) -> float | None:
    """The kernel's clock: /dev/kmsg's third field (microseconds), or dmesg's ``[171167.620236]``. None without."""
    kmsg = _KMSG.match(line)
    if kmsg is not None:
        return int(kmsg["us"]) / 1e6
    dmesg = _DMESG.search(line[:256])
    return float(dmesg["s"]) if dmesg is not None else None
