"""Plain text of kernel log lines: a record's lines apart, without colours and control characters, and its clock."""

import re
from typing import Final

_COLOURS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_KMSG: Final = re.compile(r"\d{1,4},\d+,(?P<us>\d{1,19}),[^;]{0,64};", re.ASCII)
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")
_BEGINNINGS: Final = ("NVRM:", "nvidia-nvswitch")
_DMESG: Final = re.compile(r"\[\s*(?P<s>\d{1,12}\.\d{1,9})\]", re.ASCII)


def is_about_gpus(line: str) -> bool:
    """Return whether the line may be about a GPU or NVSwitch: one fast search that most lines of a log fail."""
    return "NVRM" in line or "SXid" in line


def lines_of(text: str) -> tuple[str, ...]:
    r"""Return the lines in the text of a record of /dev/kmsg, where a byte that is not printable stands as ``\xNN``.

    A driver's record of several lines names the driver in each. A line that does not is the rest of the one before.
    """
    if "\\x" in text:
        text = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), text.encode()).decode("utf-8", "replace")
    if "\n" not in text:
        return (text,)
    lines = list[str]()
    for line in filter(None, (each.rstrip("\r") for each in text.split("\n"))):
        if lines and lines[-1].startswith(_BEGINNINGS) and not line.startswith(_BEGINNINGS):
            lines[-1] = f"{lines[-1]} {line.lstrip()}"
        else:
            lines.append(line)
    return tuple(lines)


def plain(line: str) -> str:
    """Return the line without colours, and with a blank for each unprintable character."""
    line = _COLOURS.sub("", line)
    return line if line.isprintable() else "".join(each if each.isprintable() else " " for each in line)


def text_of_record(line: str) -> str | None:
    """Return the text of a record of /dev/kmsg, after its head; None for a line of another form."""
    kmsg = _KMSG.match(line)
    return None if kmsg is None else line[kmsg.end() :]


def seconds_since_boot(line: str) -> float | None:
    """Return the kernel's clock in seconds, None where the line has none.

    It is /dev/kmsg's third field (microseconds), or dmesg's ``[171167.620236]``.
    """
    kmsg = _KMSG.match(line)
    if kmsg is not None:
        return int(kmsg["us"]) / 1e6
    dmesg = _DMESG.search(line[:256])
    return float(dmesg["s"]) if dmesg is not None else None
