"""Counters of the kernel's network, by the names of ``state_readings.HOST_RATES``."""

from pathlib import Path
from typing import Final

from agents.host.files import read_text, whole

_SNMP: Final = {
    "tcp_segments": (("Tcp", "OutSegs"),),
    "tcp_retransmits": (("Tcp", "RetransSegs"),),
    "udp_receive_errors": (("Udp", "RcvbufErrors"), ("Udp", "InCsumErrors")),
}
_SNMP6: Final = {"udp_receive_errors": ("Udp6RcvbufErrors", "Udp6InCsumErrors")}
_DROPPED: Final = 1
"""Column of softnet_stat, which has a line a CPU, in hexadecimal."""


def network_counters(proc: Path) -> dict[str, float]:
    """Return the counters that can be read. ``proc``: /proc, or a tree of its shape."""
    snmp = _pairs_of_lines(read_text(proc / "net" / "snmp") or "")
    snmp6 = _lines(read_text(proc / "net" / "snmp6") or "")
    found: dict[str, float] = {}
    for name, places in _SNMP.items():
        values = [snmp[place] for place in places if place in snmp]
        if values:
            found[name] = sum(values) + sum(snmp6.get(other, 0.0) for other in _SNMP6.get(name, ()))
    dropped = _softnet_dropped(read_text(proc / "net" / "softnet_stat") or "")
    if dropped is not None:
        found["softnet_dropped"] = dropped
    return found


def _pairs_of_lines(text: str) -> dict[tuple[str, str], float]:
    """Return the values of a line of names and a line of values, each begun by its protocol."""
    found: dict[tuple[str, str], float] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        protocol, _, words = names.partition(":")
        other, _, numbers = values.partition(":")
        if protocol != other:
            continue
        for word, number in zip(words.split(), numbers.split(), strict=False):
            value = whole(number)
            if value is not None and value >= 0:
                found[protocol, word] = value
    return found


def _lines(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        words = line.split()
        value = whole(words[1]) if len(words) == 2 else None  # a name and its value
        if value is not None:
            found[words[0]] = value
    return found


def _softnet_dropped(text: str) -> float | None:
    found = [_hexadecimal(words[_DROPPED]) for words in map(str.split, text.splitlines()) if len(words) > _DROPPED]
    known = [value for value in found if value is not None]
    return float(sum(known)) if known else None


def _hexadecimal(word: str) -> int | None:
    try:
        return int(word, 16) if len(word) <= 16 and word.isalnum() else None  # 64 bits
    except ValueError:
        return None
