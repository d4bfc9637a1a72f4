"""Plain text of a kernel log line: without colours and control characters, and with the kernel's clock read from it."""

import re
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_KMSG: Final = re.compile(r"\d{1,4},\d+,(?P<us>\d{1,19}),[^;]{0,64};", re.ASCII)
_DMESG: Final = re.compile(r"\[\s*(?P<s>\d{1,12}\.\d{1,9})\]", re.ASCII)


def is_about_gpus(line: str) -> bool:
    """Return whether the line may be about a GPU or NVSwitch: one fast search that most lines of a log fail."""
    return "NVRM" in line or "SXid" in line


def plain(line: str) -> str:
    """Return the line without colours, and with a blank for each unprintable character."""
    line = _COLOURS.sub("", line)
    return line if line.isprintable() else "".join(each if each.isprintable() else " " for each in line)


def seconds_since_boot(line: str) -> float | None:
    """Return the kernel's clock in seconds, None where the line has none.

    It is /dev/kmsg's third field (microseconds), or dmesg's ``[171167.620236]``.
    """
    kmsg = _KMSG.match(line)
    if kmsg is not None:
        return int(kmsg["us"]) / 1e6
    dmesg = _DMESG.search(line[:256])
    return float(dmesg["s"]) if dmesg is not None else None
