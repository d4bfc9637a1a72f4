"""A scan as people read it: one row a GPU within 80 columns, then the faults, then the unsupported readings."""

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agents.scan.scan import ScannedGpu, ScanReport
from agents.scan.verdict import ScanFinding
from muster.domain.evidence.findings import Source
from muster.domain.gpu.metrics import value_of

MIB_PER_GIB = 1024
NOTHING = "-"
_SCAN_COLUMNS = ("#", "GPU", "MODEL", "TEMP", "W", "UTIL", "GiB", "ECC", "XID", "STATE")
_PORT_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}
_HOST_WORDS = {
    "expected_gpus": "{expected_gpus:.0f} GPUs enrolled",
    "disk_free_fraction": "{disk_free_fraction:.0%} of its disk free",
    "cpu_pressure": "CPU short for {cpu_pressure:.0%} of the last minute",
    "memory_pressure": "memory for {memory_pressure:.0%}",
    "io_pressure": "I/O for {io_pressure:.0%}",
}
_SCAN_STYLES = {
    "OK": "green",
    "FAULT": "red",
    "LOST": "red",
    "LATE": "yellow",
    "WARN": "yellow",
    "WAITS": "yellow",
    "MIG": "dim",
}


def print_report(report: ScanReport) -> None:
    out = Console(highlight=False, no_color=True if "NO_COLOR" in os.environ else None)
    table = Table(*_SCAN_COLUMNS, box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    for gpu in report.gpus:
        table.add_row(*(Text(cell, style=_SCAN_STYLES.get(cell, "")) for cell in _row(gpu)))
    if report.gpus:
        out.print(table)
    for line in (*_findings(report), *_unread(report), *_host(report), *_not_judged(report), _summary(report)):
        out.print(line, markup=False)


def short_uuid(uuid: str) -> str:
    """Return the first and last four digits, which distinguish the GPUs of one host. Plain ASCII, for any terminal."""
    return uuid if len(uuid) <= 14 else f"{uuid[:8]}..{uuid[-4:]}"


def _row(gpu: ScannedGpu) -> tuple[str, ...]:
    model = (gpu.identity.model if gpu.identity is not None else None) or NOTHING
    return (
        str(gpu.check.index),
        short_uuid(gpu.check.gpu_uuid),
        model.removeprefix("NVIDIA ")[:14],
        _number(gpu, "temperature_c"),
        f"{_number(gpu, 'power_w')}/{_number(gpu, 'power_limit_w')}",
        _number(gpu, "utilisation_percent", "%"),
        _memory(gpu),
        _number(gpu, "ecc_uncorrected_volatile"),
        _codes(gpu.xids),
        gpu.state,
    )


def _number(gpu: ScannedGpu, metric: str, unit: str = "") -> str:
    value = value_of(gpu.check.values, metric)
    return NOTHING if value is None else f"{value:.0f}{unit}"


def _memory(gpu: ScannedGpu) -> str:
    used_mib = value_of(gpu.check.values, "memory_used_mib")
    total_bytes = gpu.identity.memory_bytes if gpu.identity is not None else None
    used = NOTHING if used_mib is None else f"{used_mib / MIB_PER_GIB:.0f}"
    return used if total_bytes is None else f"{used}/{total_bytes / (1 << 30):.0f}"


def _codes(xids: tuple[int, ...]) -> str:
    if len(xids) > 2:
        return f"{xids[0]} +{len(xids) - 1}"
    return ",".join(map(str, xids)) or NOTHING


def _findings(report: ScanReport) -> Iterable[str]:
    for gpu in report.gpus:
        for found in gpu.findings:
            yield _words(found, f"{short_uuid(gpu.check.gpu_uuid)} (slot {gpu.check.index})")
    for found in () if report.host is None else report.host.findings:
        yield _words(found, "this host" if found.pci is None else f"GPU at {found.pci}")
    for nameless in report.inventory.nameless:
        yield f"fault: the GPU in slot {nameless.index} does not report its identity: {nameless.fault}"


def _words(found: ScanFinding, receiver: str) -> str:
    """Return a finding as text: one that counts is a fault or a warning; one that does not yet, or never will, waits
    with the reason.
    """
    told = f"{receiver}: {found.summary}"
    if Source.KERNEL_LOG in found.sources:
        told += f", in the kernel log at {_when(found.onset_ms)} UTC"
    if found.action is not None:
        told += f" (asks for {found.action})"
    if found.waits is None:
        return f"{'fault' if found.is_fault else 'warning'}: {told}"
    until_ms = found.waits.until_ms
    until = "" if until_ms is None else f", at {_when(until_ms)} UTC"
    return f"waits: {told}: {found.waits.why}{until}"


def _when(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _unread(report: ScanReport) -> Iterable[str]:
    """Yield the unsupported readings, and the failed ones."""
    yield from _unsupported(report)
    yield from _failed(report)


def _unsupported(report: ScanReport) -> Iterable[str]:
    """Yield the unsupported readings, GPUs with the same ones together.

    Only the JSON names rare readings that are unsupported, such as retired pages, which no GPU of today has.
    """
    silent: dict[tuple[str, ...], list[int]] = {}
    for gpu in report.gpus:
        of_identity = gpu.identity.unsupported if gpu.identity is not None else frozenset()
        names = tuple(sorted(gpu.check.unsupported | of_identity))
        if names:
            silent.setdefault(names, []).append(gpu.check.index)
    for names, slots in silent.items():
        yield f"unsupported in slots {_ranges(slots)}: {', '.join(names)}"


def _failed(report: ScanReport) -> Iterable[str]:
    """Yield the failed readings of GPUs that answered."""
    for gpu in report.gpus:
        if not gpu.check.is_lost and not gpu.check.is_late:
            of_identity = gpu.identity.faults if gpu.identity is not None else {}
            of_inspection = gpu.inspection.faults if gpu.inspection is not None else {}
            for name, words in {**of_identity, **of_inspection, **gpu.check.faults}.items():
                yield f"unread in slot {gpu.check.index}: {name}: {words}"


def _host(report: ScanReport) -> Iterable[str]:
    """Yield the host's ports, then its other facts, a line each."""
    if report.host is None:
        return
    if report.host.ports:
        yield f"ports: {', '.join(_port(name, values) for name, values in report.host.ports.items())}"
    told = [words for name, words in _HOST_WORDS.items() if name in report.host.state]
    if told:
        yield f"host: {', '.join(told).format(**report.host.state)}"


def _port(name: str, values: Mapping[str, float]) -> str:
    state = "unknown" if "state" not in values else _PORT_STATES.get(int(values["state"]), "unknown")
    rate = f" {values['rate_gbps']:g} Gb/s" if "rate_gbps" in values and state == "active" else ""
    return f"{name} {state}{rate}"


def _ranges(slots: list[int]) -> str:
    """Return ``0-7`` for eight slots in a row, else each one."""
    if len(slots) > 2 and slots == list(range(slots[0], slots[-1] + 1)):
        return f"{slots[0]}-{slots[-1]}"
    return ", ".join(map(str, slots))


def _not_judged(report: ScanReport) -> Iterable[str]:
    """Yield the names alone of readings that were not judged; --json has the reasons."""
    if report.not_judged:
        yield f"not judged in {report.listened_s:.0f} s (--json says why): {', '.join(report.not_judged)}"


def _summary(report: ScanReport) -> str:
    num_ill = sum(1 for gpu in report.gpus if gpu.state in {"FAULT", "LOST", "LATE"}) + len(report.inventory.nameless)
    num_waiting = sum(1 for found in report.findings if found.waits is not None)
    num_warnings = sum(1 for found in report.findings if found.is_warning)
    of_host = () if report.host is None else report.host.findings
    num_gpus = len(report.gpus) + len(report.inventory.nameless)
    parts = [f"{num_ill} with a fault"] if num_ill else []
    parts += ["this host has a fault"] if any(found.is_fault for found in of_host) else []
    parts += [f"{num_warnings} warning{'s' if num_warnings > 1 else ''}"] if num_warnings else []
    parts += [f"{num_waiting} {'findings wait' if num_waiting > 1 else 'finding waits'}"] if num_waiting else []
    if report.no_driver is not None:
        return f"No GPU could be asked: {', '.join(['no driver', *parts])}."
    verdict = ", ".join(["no fault found", *parts] if report.is_healthy else parts)
    kind = ", simulated" if report.inventory.is_simulated else ""
    driver = f"driver {report.inventory.driver_version}, CUDA {report.inventory.cuda_version}"
    return f"{num_gpus} GPU{'s' if num_gpus != 1 else ''}{kind}, {driver}: {verdict}."
