"""The findings of the lines of all hosts, and the root among them.

A cascade or a symptom is never a root, and an exception that follows one in the same output only followed from it.
Lines of the kernel count for their host; the rank of them is the one whose own state or output fits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from muster.domain.exit.fault_lines import Fault, Role
from watch.forensics.standing import Stand, Standing
from watch.lines.findings import LineFinding
from watch.lines.reader import LineReader
from watch.reports import COMPLETED, SCHEDULED, WATCHDOG, Collective, HostReport, ProcessState, RankReport

CAUSE_OF: Final = {
    Fault.NETWORK: "network",
    Fault.GPU: "gpu",
    Fault.MEMORY: "dead_rank",
    Fault.DESYNC: "mismatched_collective",
    Fault.CONFIGURATION: "configuration",
    Fault.LOADER: "data_loader",
    Fault.STORAGE: "storage",
    Fault.NUMERIC: "dead_rank",
    Fault.EXCEPTION: "dead_rank",
}
_ENDS_A_RANK: Final = frozenset({Fault.MEMORY, Fault.NUMERIC, Fault.EXCEPTION})
"""Faults that a program may catch and outlive: they count only for a rank that is not known to live."""
_ALIVE: Final = frozenset({ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.BLOCKED, ProcessState.STOPPED})
_WEAK: Final = frozenset(
    {"c10d.watchdog_stuck", "nccl.ib_completion", "program.exception", "kernel.nic", "kernel.storage"}
)
"""Roots that also follow from another fault: any other root goes before them."""
_XIDS_OF_PROGRAMS: Final = frozenset({"13", "31", "43", "45"})


@dataclass(frozen=True, slots=True)
class Quote:
    """A finding, the host that reported it, and its place in its stream. ``follows``: a cascade came before it."""

    finding: LineFinding
    node: str
    is_of_kernel: bool = False
    follows: bool = False

    @property
    def words(self) -> str:
        """Return the line with its origin, for the evidence."""
        if self.is_of_kernel:
            return f"kernel{f' of {self.node}' if self.node else ''}: {self.finding.text}"
        by = "a rank" if self.finding.rank is None else f"rank {self.finding.rank}"
        return f"{by} printed: {self.finding.text}"


@dataclass(frozen=True, slots=True)
class Root:
    """The root among the lines, the ranks that it is about, and the host."""

    quote: Quote
    ranks: tuple[int, ...]
    node: str

    @property
    def cause(self) -> str:
        return CAUSE_OF[self.quote.finding.fault]


def quotes_in(reports: Sequence[HostReport]) -> tuple[Quote, ...]:
    """Return the findings of all lines, in the order of each stream."""
    found: list[Quote] = []
    for report in reports:
        found += _of_stream(report.lines, report.node, is_kernel=True)
        found += _of_stream(report.lines, report.node)
        for rank in report.ranks:
            found += _of_stream(rank.lines, report.node, rank=rank.rank)
    return tuple(found)


def _of_stream(lines: Iterable[str], node: str, *, rank: int | None = None, is_kernel: bool = False) -> list[Quote]:
    reader = LineReader(rank=rank, is_kernel=is_kernel)
    findings = reader.feed("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
    found: list[Quote] = []
    followers: set[int | None] = set()
    for finding in findings:
        found.append(Quote(finding, node, is_kernel, finding.rank in followers))
        if finding.role is not Role.ROOT:
            followers.add(finding.rank)
    return found


def root_of(quotes: Sequence[Quote], ranks: dict[int, tuple[str, RankReport]], stands: dict[int, Stand]) -> Root | None:
    """Return the root among the lines; None if all of them are cascades, symptoms, or of ranks that live on."""
    roots = [each for each in quotes if _is_root(each, ranks)]
    if not roots:
        return None
    best = min(roots, key=_order)
    alike = [each for each in roots if each.finding.name == best.finding.name and _order(each)[:2] == _order(best)[:2]]
    named = _named(best, alike)
    if not named and best.is_of_kernel:
        named = _ranks_of_kernel_line(best, quotes, ranks, stands)
    node = ranks[named[0]][0] if named and named[0] in ranks else best.node or best.finding.host
    return Root(best, named, node)


def _named(best: Quote, alike: Sequence[Quote]) -> tuple[int, ...]:
    """Return the ranks that lines of one kind accuse.

    A line about differing collectives is printed by either side: the rank that differs from the most others comes
    first, and without such pairs none is accused.
    """
    if best.finding.fault is not Fault.DESYNC:
        return tuple(dict.fromkeys(each.finding.rank for each in alike if each.finding.rank is not None))
    found = (each.finding.details for each in alike)
    pairs = {(int(each["rank"]), int(each["other"])) for each in found if "rank" in each and "other" in each}
    others: dict[int, set[int]] = {}
    for first, second in sorted(pairs):
        others.setdefault(first, set()).add(second)
        others.setdefault(second, set()).add(first)
    most = max(map(len, others.values()), default=0)
    stating = {first for first, _ in pairs}
    return tuple(sorted((rank for rank in others if len(others[rank]) == most), key=lambda rank: rank not in stating))


def _is_root(quote: Quote, ranks: dict[int, tuple[str, RankReport]]) -> bool:
    finding = quote.finding
    if finding.role is not Role.ROOT or finding.details.get("xid") in _XIDS_OF_PROGRAMS:
        return False
    if finding.fault is Fault.EXCEPTION and quote.follows:
        return False
    if finding.fault not in _ENDS_A_RANK or quote.is_of_kernel:
        return True
    known = ranks.get(-1 if finding.rank is None else finding.rank)
    return known is None or known[1].process not in _ALIVE


def _order(quote: Quote) -> tuple[bool, bool, int]:
    rank = quote.finding.rank
    return quote.finding.name in _WEAK, quote.follows, 1 << 62 if rank is None else rank


def _ranks_of_kernel_line(
    quote: Quote, others: Sequence[Quote], ranks: dict[int, tuple[str, RankReport]], stands: dict[int, Stand]
) -> tuple[int, ...]:
    """Return the ranks of the host whose own state or output fits the kernel's line."""
    here = [number for number, (node, _) in sorted(ranks.items()) if node == quote.node]
    if gpu := quote.finding.details.get("gpu"):  # an agent names the GPU
        return tuple(number for number in here if ranks[number][1].gpu == gpu)
    fits = {
        Fault.GPU: {Standing.GPU},
        Fault.MEMORY: {Standing.DEAD},
        Fault.STORAGE: {Standing.STORAGE, Standing.DATA_LOADER},
    }.get(quote.finding.fault, set())
    printed = {
        each.finding.rank
        for each in others
        if each.finding.fault is quote.finding.fault and not each.is_of_kernel and each.node == quote.node
    }
    chosen = [number for number in here if stands[number].standing in fits or number in printed]
    return tuple(chosen or (here if len(here) == 1 else ()))


def sequences_in(quotes: Sequence[Quote]) -> dict[int, tuple[Collective, ...]]:
    """Return the collectives that PyTorch's watchdog states for ranks without a dump of the flight recorder."""
    operations = {
        (each.finding.rank, each.finding.details.get("sequence")): _operation(each.finding.details.get("operation", ""))
        for each in quotes
        if each.finding.name == "c10d.timeout"
    }
    found: dict[int, dict[tuple[str, int], Collective]] = {}
    for each in quotes:
        rank, details = each.finding.rank, each.finding.details
        if rank is None or not each.finding.name.startswith("c10d.status") or "enqueued" not in details:
            continue
        group, of_rank = details.get("group", "0"), found.setdefault(rank, {})
        done, newest = int(details["completed"]), int(details["enqueued"])
        for number in sorted({done, min(done + 1, newest), newest}):
            if number > 0:
                operation = operations.get((rank, str(number)), "")
                state = COMPLETED if number <= done else SCHEDULED
                of_rank[group, number] = Collective(group, number, operation, state=state, source=WATCHDOG)
    _add_timeouts(found, operations)
    return {rank: tuple(each for _, each in sorted(of_rank.items())) for rank, of_rank in found.items()}


def _add_timeouts(
    found: dict[int, dict[tuple[str, int], Collective]], operations: dict[tuple[int | None, str | None], str]
) -> None:
    """Add the collectives of ranks that state a timeout and no status, as releases before 2.3 do."""
    for (rank, sequence), operation in operations.items():
        if rank is not None and sequence is not None and rank not in found:
            entry = Collective("0", int(sequence), operation, state=SCHEDULED, source=WATCHDOG)
            found[rank] = {("0", entry.sequence): entry}


def _operation(name: str) -> str:
    """Return the flight recorder's name of an operation that the watchdog names, such as ``ALLREDUCE``."""
    lower = name.lower().replace("allreduce", "all_reduce").replace("allgather", "all_gather")
    return lower.replace("alltoall", "all_to_all")


def named_by_barrier(quotes: Sequence[Quote]) -> tuple[tuple[int, ...], Quote | None]:
    """Return the ranks that a monitored barrier of gloo reports as missing."""
    for each in quotes:
        if each.finding.name == "gloo.barrier" and "named" in each.finding.details:
            return tuple(int(number) for number in each.finding.details["named"].split(", ")), each
    return (), None
