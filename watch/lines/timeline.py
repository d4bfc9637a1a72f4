"""One timeline of the lines about faults of an attempt, joined with what was measured on its hosts: the root first.

    rank 0 on node-a   NET/IB: Got completion from peer … with error 12, hca mlx5_4    root
    node-a             port mlx5_4/1 is down                                           measured, of that host and time
    rank 3 on node-b   NET/IB: Got completion from peer … with error 5 (8 times)       cascade
    rank 1 on node-a   Watchdog caught collective operation timeout                    symptom

A line is a reported fact, a measured fault is not. A cascade or a symptom is never a root: without a root line and
without a measured fault there is none. Times of two hosts are never compared, since their clocks may differ.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from muster.domain.exit.fault_lines import FAULT_LINES, Fault, Role
from watch.lines.findings import OF_A_PROGRAM

NEAR_MS: Final = 600_000
"""A measured fault explains lines of the same host that began within so much of it."""
MOST_PARTS: Final = 30
MEASURED: Final = "measured"
_FAULT_OF: Final = {**{row.name: row.fault for row in FAULT_LINES}, OF_A_PROGRAM: Fault.EXCEPTION}
_WEAK_ROOTS: Final = frozenset(
    {"c10d.watchdog_stuck", "nccl.ib_completion", OF_A_PROGRAM, "nccl.system_error", "nccl.internal_error"}
)
"""Roots that also follow from another fault: any other root goes before them."""
_MEASURED_FAULTS: Final = (
    ("port", (Fault.NETWORK,)),
    ("nic", (Fault.NETWORK,)),
    ("host_network", (Fault.NETWORK,)),
    ("pair_probe", (Fault.NETWORK,)),
    ("nvlink", (Fault.GPU, Fault.NETWORK)),
    ("fabric", (Fault.GPU, Fault.NETWORK)),
    ("host_disk", (Fault.STORAGE,)),
    ("host_pressure", (Fault.MEMORY, Fault.STORAGE)),
    ("host_log", (Fault.STORAGE, Fault.MEMORY)),
)
"""Beginning of a rule's name, and the kinds of faults that its finding explains. Every other rule is about a GPU."""


@dataclass(frozen=True, slots=True)
class HostLine:
    """A line about a fault from the output of one host, repeats folded. Times are by the clock of that host."""

    node: str
    pattern: str
    role: Role
    text: str
    rank: int | None
    peer: str
    port: int
    hca: str
    count: int
    first_ms: int
    last_ms: int

    @property
    def fault(self) -> Fault:
        return _FAULT_OF.get(self.pattern, Fault.EXCEPTION)


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured fault of a host or of a GPU of the attempt. ``port``: of a network port, such as ``mlx5_4/1``."""

    node: str
    rule: str
    summary: str
    at_ms: int
    gpu: str = ""
    port: str = ""

    @property
    def faults(self) -> tuple[Fault, ...]:
        return _faults_of(self.rule)


@cache
def _faults_of(rule: str) -> tuple[Fault, ...]:
    return next((faults for name, faults in _MEASURED_FAULTS if rule.startswith(name)), (Fault.GPU,))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a timeline. ``role``: of a line, or ``measured``. ``is_root``: at most one part is."""

    role: str
    node: str
    text: str
    rank: int | None = None
    pattern: str = ""
    count: int = 1
    peer: str = ""
    port: str = ""
    gpu: str = ""
    is_root: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """``sentence``: the whole in one sentence. ``parts``: the root first, then what supports it, then what followed."""

    sentence: str
    parts: tuple[Part, ...]

    @property
    def root(self) -> Part | None:
        return self.parts[0] if self.parts and self.parts[0].is_root else None


@dataclass(frozen=True, slots=True)
class _Candidate:
    line: HostLine | None
    support: tuple[Measured, ...]
    order: tuple[bool, bool, bool, int, str, int]


def timeline_of(
    lines: Sequence[HostLine], measured: Sequence[Measured], addresses: Mapping[str, str] | None = None
) -> Timeline | None:
    """Return the timeline of an attempt; None if there is no line. ``addresses``: of hosts, to their names."""
    if not lines:
        return None
    known = _with_followers(lines)
    named = _named_as_lost(known, addresses or {})
    candidates = [*_of_lines(known, measured, named, addresses or {}), *_of_measured(known, measured, named)]
    best = min(candidates, key=lambda each: each.order, default=None)
    parts = _parts(best, known)
    return Timeline(_sentence(best, parts, known), parts)


def _with_followers(lines: Iterable[HostLine]) -> list[HostLine]:
    """Return the lines; an exception after a cascade or a symptom of the same rank only followed from it."""
    first: dict[tuple[str, int | None], int] = {}
    for each in lines:
        if each.role is not Role.ROOT:
            place = each.node, each.rank
            first[place] = min(each.first_ms, first.get(place, each.first_ms))

    def follows(line: HostLine) -> bool:
        is_exception = line.role is Role.ROOT and line.fault is Fault.EXCEPTION
        return is_exception and first.get((line.node, line.rank), line.first_ms + 1) <= line.first_ms

    return [replace(each, role=Role.CASCADE) if follows(each) else each for each in lines]


def _named_as_lost(lines: Iterable[HostLine], addresses: Mapping[str, str]) -> Counter[str]:
    """Return how many hosts' cascade lines name each host as their lost peer."""
    pairs = {
        (each.node, addresses[each.peer]) for each in lines if each.role is Role.CASCADE and each.peer in addresses
    }
    return Counter(peer for node, peer in pairs if node != peer)


def _of_lines(
    lines: Iterable[HostLine], measured: Sequence[Measured], named: Counter[str], addresses: Mapping[str, str]
) -> list[_Candidate]:
    found: list[_Candidate] = []
    for line in lines:
        if line.role is not Role.ROOT:
            continue
        support = tuple(each for each in measured if _supports(each, line, addresses))
        order = (not support, line.pattern in _WEAK_ROOTS, False, -named[line.node], line.node, line.first_ms)
        found.append(_Candidate(line, support, order))
    return found


def _of_measured(lines: Sequence[HostLine], measured: Iterable[Measured], named: Counter[str]) -> list[_Candidate]:
    """Return measured faults that no root line is about: they come before weak roots and after all others."""
    found: list[_Candidate] = []
    for each in measured:
        is_near = any(abs(line.first_ms - each.at_ms) <= NEAR_MS for line in lines if line.node == each.node)
        if not is_near and each.node not in named:
            continue
        found.append(_Candidate(None, (each,), (True, False, True, -named[each.node], each.node, each.at_ms)))
    return found


def _supports(measured: Measured, line: HostLine, addresses: Mapping[str, str]) -> bool:
    """Return whether a measured fault explains a root line: of its host and time, or of the peer that it names."""
    if line.fault not in measured.faults:
        return False
    if measured.node != line.node:
        return line.fault is Fault.NETWORK and bool(line.peer) and addresses.get(line.peer) == measured.node
    if line.hca and measured.port and "/" in measured.port and not _is_of_card(measured.port, line.hca):
        return False
    return abs(measured.at_ms - line.first_ms) <= NEAR_MS or line.first_ms <= measured.at_ms <= line.last_ms


def _is_of_card(port: str, hca: str) -> bool:
    return port.partition("/")[0] == hca.partition(":")[0]


def _parts(best: _Candidate | None, lines: Sequence[HostLine]) -> tuple[Part, ...]:
    parts: list[Part] = []
    root = None if best is None else best.line
    if best is not None:
        parts = [*([] if root is None else [_part_of(root)]), *map(_part_measured, best.support)]
        parts[0] = replace(parts[0], is_root=True)
    rank_of_role = {Role.ROOT: 0, Role.CASCADE: 1, Role.SYMPTOM: 2}
    rest = sorted(
        (each for each in lines if each is not root),
        key=lambda each: (rank_of_role[each.role], each.node, each.first_ms, -1 if each.rank is None else each.rank),
    )
    parts += map(_part_of, rest)
    return tuple(parts[:MOST_PARTS])


def _part_of(line: HostLine) -> Part:
    port = str(line.port) if line.port else line.hca
    return Part(line.role, line.node, line.text, line.rank, line.pattern, line.count, line.peer, port)


def _part_measured(each: Measured) -> Part:
    return Part(MEASURED, each.node, each.summary, pattern=each.rule, port=each.port, gpu=each.gpu)


def _sentence(best: _Candidate | None, parts: Sequence[Part], lines: Sequence[HostLine]) -> str:
    num_followed = sum(each.count for each in lines if each.role is not Role.ROOT)
    if best is None:
        stated = "1 line only states" if num_followed == 1 else f"{num_followed} lines only state"
        return f"No line and no measurement names a cause: {stated} that ranks waited or lost each other."
    counted = f"{num_followed} {'line' if num_followed == 1 else 'lines'}"
    after = f"; {counted} of cascades and symptoms followed" if num_followed else ""
    first = best.line
    if first is None:
        return f"Measured on {parts[0].node}: {parts[0].text}{after}."
    times = f" ({first.count} times)" if first.count > 1 else ""
    support = f"; measured on {best.support[0].node}: {best.support[0].summary}" if best.support else ""
    return f"{subject_of(parts[0])} printed{times}: {first.text[:240]}{support}{after}."


def subject_of(part: Part) -> str:
    """Return the origin of a part as text: ``Rank 3 on node-a``, ``A rank on node-a``, or the host."""
    if part.role == MEASURED:
        return f"{part.node}{f' ({part.gpu})' if part.gpu else ''}"
    return f"{'A rank' if part.rank is None else f'Rank {part.rank}'} on {part.node}"
