"""Kernel log lines of the driver of NVIDIA's network cards (mlx5_core) about a card. Pure.

Sources: the Linux kernel's driver (``drivers/net/ethernet/mellanox/mlx5/core``: ``cmd.c``, ``health.c``, ``events.c``)
for the lines; NVSentinel's NIC monitor for which of them mean that a card no longer works::

    mlx5_core 0000:3b:00.0: wait_func:1143:(pid 6513): ENABLE_HCA(0x104) timeout. Will cause a leak of a command …
    mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): device's health compromised - reached miss count
    mlx5_core 0000:3b:00.0: Port module event[error]: module 0, Cable error, Bad/unsupported EEPROM
    NETDEV WATCHDOG: ib0 (mlx5_core): transmit queue 5 timed out

The port reports that it is up all the while: no other signal shows these faults. Lines that only a query causes
(``ACCESS_REG failed``) are skipped.
"""

import re
from dataclasses import dataclass
from typing import Final

from health.xid.kernel_lines import plain

NIC_LINE_BEGINNINGS: Final = ("mlx5_core ", "NETDEV WATCHDOG: ")
"""Beginnings of the kernel's lines about such cards."""
MAX_TEXT: Final = 500
"""Characters of a line that are kept."""
_LINE: Final = re.compile(
    r"(?:mlx5_core (?P<pci>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\b"
    r"|NETDEV WATCHDOG: (?P<interface>\S{1,32}) \(mlx5_core\))",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class NicFaultKind:
    """One kind of fault. ``is_fatal``: the card no longer works, whatever its ports report."""

    name: str
    pattern: re.Pattern[str]
    text: str
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class NicFault:
    """A fault of a card. ``place``: the card's PCI address, or the interface where the line names that alone."""

    kind: NicFaultKind
    place: str
    text: str


def _kind(name: str, pattern: str, text: str, *, is_fatal: bool = False) -> NicFaultKind:
    return NicFaultKind(name, re.compile(pattern, re.IGNORECASE), text, is_fatal)


NIC_LINE_KINDS: Final = (
    _kind("command_timeout", r"timeout\. Will cause a leak", "its firmware does not answer a command", is_fatal=True),
    _kind(
        "health",
        r"health poll failed|health compromised|Fatal error \d+ detected",
        "its firmware has stopped or reports a fatal error",
        is_fatal=True,
    ),
    _kind("unrecoverable", r"unrecoverable", "its hardware is in an unrecoverable error", is_fatal=True),
    _kind("power", r"insufficient power", "its slot gives too little power"),
    _kind("heat", r"High Temperature", "it is too hot"),
    _kind("cable", r"Cable error", "the driver cannot use its cable"),
    _kind("transmit_timeout", r"NETDEV WATCHDOG|TX timeout detected", "it sends nothing from a queue"),
)
"""The first kind that matches is the line's. A cage without a cable is reported at each boot: no fault (see
``port_down``).
"""


def read_nic(line: str) -> NicFault | None:
    """Return the fault that a line states, from its first word on; None for most lines of the driver."""
    found = _LINE.match(line)
    if found is None:
        return None
    words = plain(line)[:MAX_TEXT]
    kind = next((each for each in NIC_LINE_KINDS if each.pattern.search(words)), None)
    return None if kind is None else NicFault(kind, found["pci"] or found["interface"], words)
