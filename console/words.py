"""Texts of times, sizes and states in the console: short, exact on demand, never by colour alone."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from markupsafe import Markup, escape

from console.icons import icon
from muster.domain.amounts import MS_PER_HOUR
from muster.sizes import BYTES_PER_GB, rate_in_words

TONES: Final[Mapping[str, tuple[str, str]]] = {
    # standings of a GPU
    "HEALTHY": ("good", "dot"),
    "PROBATION": ("calm", "half"),
    "UNPROVEN": ("quiet", "ring"),
    "SUSPECT": ("warn", "triangle"),
    "QUARANTINED": ("bad", "cross"),
    "REPAIR": ("busy", "diamond"),
    "RETIRED": ("quiet", "dash"),
    # contact of a node
    "LIVE": ("good", "dot"),
    "SILENT": ("warn", "triangle"),
    "LOST": ("bad", "cross"),
    # jobs and attempts
    "QUEUED": ("quiet", "ring"),
    "HELD": ("warn", "triangle"),
    "ACTIVE": ("busy", "half"),
    "RECOVERING": ("warn", "triangle"),
    "SUCCEEDED": ("good", "dot"),
    "FAILED": ("bad", "cross"),
    "CANCELLED": ("quiet", "dash"),
    "PLACED": ("calm", "ring"),
    "CLAIMING": ("calm", "ring"),
    "RUNNING": ("busy", "half"),
    "STOPPING": ("warn", "triangle"),
    "ENDED": ("quiet", "dash"),
    # checkpoints
    "WRITING": ("quiet", "ring"),
    "COMMITTED": ("calm", "half"),
    "VERIFIED": ("good", "dot"),
    "GOOD": ("good", "dot"),
    "REJECTED": ("bad", "cross"),
    "TAINTED": ("bad", "cross"),
    "EXPIRED": ("quiet", "dash"),
    # reclaims
    "NOTIFIED": ("warn", "triangle"),
    "RELEASED": ("good", "dot"),
    "FORCED": ("bad", "cross"),
    "WITHDRAWN": ("quiet", "dash"),
    "OVERTAKEN": ("calm", "half"),
    # verdicts
    "standing": ("bad", "cross"),
    "dismissed": ("quiet", "dash"),
    # the others: burn-in and incident
    "ORDERED": ("quiet", "ring"),
    "PASSED": ("good", "dot"),
    "ABANDONED": ("bad", "cross"),
    "UNDECIDED": ("warn", "triangle"),
    "open": ("bad", "cross"),
    "closed": ("quiet", "dash"),
    # severities of evidence
    "info": ("quiet", "ring"),
    "warning": ("warn", "triangle"),
    "critical": ("bad", "cross"),
    "fatal": ("bad", "cross"),
}
"""State → tone (a colour in the style sheet) and shape, so that none is shown by its colour alone."""

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def badge(state: object, label: str | None = None) -> Markup:
    """Return the state's word with its shape and tone."""
    text = str(state)
    tone, shape = TONES.get(text, ("quiet", "ring"))
    return Markup('<span class="badge badge--{}">{}<span>{}</span></span>').format(tone, icon(shape), label or text)


def tone(state: object) -> str:
    return TONES.get(str(state), ("quiet", "ring"))[0]


def when(moment: datetime | None) -> Markup:
    """Return the relative time; the exact time is shown on hover and for machines.

    The page's script keeps it current.
    """
    if moment is None:
        return Markup('<span class="none">–</span>')
    exact = moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    stamp = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(stamp, exact, ago(moment))


def countdown(moment: datetime) -> Markup:
    """Return the time that is left; the page's script keeps it current."""
    stamped = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    left = (moment - datetime.now(UTC)).total_seconds()
    words = f"{span(left)} left" if left > 0 else "over"
    return Markup('<time datetime="{}" data-countdown>{}</time>').format(stamped, words)


def clock(moment: datetime | None) -> str:
    """Return the time of day to the millisecond, for timelines."""
    return "–" if moment is None else moment.astimezone(UTC).strftime("%H:%M:%S.%f")[:-3]


def ago(moment: datetime, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def span(value: float | timedelta | None) -> str:
    """Return a length of time, in the unit that matters."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.0f} h"
    return f"{seconds / _DAY:.0f} d"


def size(num_bytes: float | None) -> str:
    """Return a size in binary units, as memory is sold by."""
    if num_bytes is None:
        return "–"
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:  # the unit's base
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def charted(unit: str, points: Sequence[float | None]) -> tuple[str, list[float | None]]:
    """Return the unit in which a metric is drawn, and its values in it: bytes per second are too many digits."""
    if unit != "bytes/s":
        return unit, list(points)
    return "GB/s", [None if value is None else value / BYTES_PER_GB for value in points]


def number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def hours(num_ms: int | None, digits: int = 2) -> str:
    """Return milliseconds in hours."""
    return number(None if num_ms is None else num_ms / MS_PER_HOUR, digits)


def money(amount: Decimal | str | None) -> str:
    """Return an amount with all its decimals, and without zeros after the second."""
    if amount is None:
        return "–"
    whole, _, rest = f"{Decimal(amount):,f}".partition(".")
    return f"{whole}.{rest[:2]}{rest[2:].rstrip('0')}" if rest else whole


_ATTRIBUTE_UNITS: Final[Mapping[str, str]] = {"_mb_per_s": "MB/s", "_mhz": "MHz", "_w": "W", "_width": "lanes"}
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "board_part_number": "Board part",
    "cuda_version": "Newest CUDA version",
    "ecc_enabled": "ECC",
    "fabric_clique": "NVLink domain and clique",
    "gsp_firmware_version": "GSP firmware",
    "inforom_version": "InfoROM",
    "kernel_release": "Linux kernel",
    "nic_driver": "Network cards' driver",
    "nic_firmware": "Network cards' firmware",
    "nic_rate": "Network cards' best rate",
    "nvlink_links": "NVLinks",
    "nvlink_mb_per_s": "Speed of one NVLink",
    "pcie_max_generation": "PCIe generation, at most",
    "pcie_max_width": "PCIe width, at most",
    "persistence_enabled": "Persistence mode",
    "vbios_version": "VBIOS",
}
_RATE_UNITS: Final[Mapping[str, str]] = {"_gb_per_s": "GB/s", "_tflops": "TFLOP/s"}


def short(identifier: str | None) -> Markup:
    """Return an id cut to its distinguishing part; hovering shows and copying gives the whole."""
    if identifier is None:
        return Markup('<span class="none">–</span>')
    head, tail = (8, 4) if identifier.startswith("GPU-") else (identifier.find("_") + 1, 6)
    text = identifier if len(identifier) <= head + tail + 1 else f"{identifier[:head]}…{identifier[-tail:]}"
    return Markup('<span class="id" title="{}">{}</span>').format(identifier, text)


def plural(count: int, noun: str, many: str | None = None) -> str:
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def measure(name: str) -> str:
    """Return the name of a burn-in's measure, with its unit as it is written elsewhere."""
    for ending, unit in _RATE_UNITS.items():
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')}, {unit}"
    return name.replace("_", " ")


def attribute(name: str) -> str:
    """Return the name of a GPU's attribute (``domain.gpu.cohort_attributes``); its unit is with its value."""
    if name in _ATTRIBUTES:
        return _ATTRIBUTES[name]
    words = next((name.removesuffix(ending) for ending in _ATTRIBUTE_UNITS if name.endswith(ending)), name)
    return words.replace("_", " ").capitalize()


def attribute_value(value: str, name: str) -> str:
    """Return the value as agents report it, with its unit."""
    if name.endswith("_enabled"):
        return {"1": "on", "0": "off"}.get(value, value)
    unit = next((unit for ending, unit in _ATTRIBUTE_UNITS.items() if name.endswith(ending)), "")
    return f"{value} {unit}".rstrip()


def microseconds(value: float | None) -> str:
    """Return a round trip's time, or a text where no answer came back."""
    if value is None:
        return "none came back"
    return f"{value:,.0f} µs" if value < 1_000 else f"{value / 1_000:,.1f} ms"


def stamp(at_ms: int) -> str:
    """Return milliseconds since 1970 as a machine-readable time."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def in_ms(at_ms: int) -> str:
    return ago(datetime.fromtimestamp(at_ms / 1000, UTC))


def commands(text: str) -> Markup:
    """Return a sentence in which the commands between backquotes are set as such."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


TEMPLATE_FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "badge": badge,
    "tone": tone,
    "when": when,
    "clock": clock,
    "countdown": countdown,
    "span": span,
    "rate": rate_in_words,
    "size": size,
    "number": number,
    "hours": hours,
    "money": money,
    "short": short,
    "plural": plural,
    "measure": measure,
    "attribute": attribute,
    "attribute_value": attribute_value,
    "microseconds": microseconds,
    "shell": shlex.quote,
    "stamp": stamp,
    "in_ms": in_ms,
    "commands": commands,
}
