"""Candidates from log lines: the root among them, and the ranks that lines about a wait name or miss."""

from collections.abc import Iterator

from muster.domain.exit.fault_lines import Fault
from watch.forensics.candidates import Candidate, State, Weight
from watch.forensics.line_evidence import Root, named_by_barrier, root_of
from watch.forensics.standing import Standing

_SHORT: dict[Fault, str] = {
    Fault.NETWORK: "reports a fault of the network",
    Fault.GPU: "has a GPU that failed or does not answer",
    Fault.MEMORY: "ran out of memory",
    Fault.DESYNC: "entered another collective than the others",
    Fault.CONFIGURATION: "reports a configuration that cannot work",
    Fault.LOADER: "lost a worker of its data loader",
    Fault.STORAGE: "reports a fault of storage",
    Fault.NUMERIC: "ended on a value that is no finite number",
    Fault.EXCEPTION: "ended by an exception",
}
_WEIGHTS: dict[Fault, Weight] = {
    Fault.NETWORK: Weight.NETWORK,
    Fault.GPU: Weight.GPU,
    Fault.MEMORY: Weight.DEAD_LINE,
    Fault.DESYNC: Weight.MISMATCH,
    Fault.CONFIGURATION: Weight.MISMATCH,
    Fault.LOADER: Weight.HOLDER,
    Fault.STORAGE: Weight.NETWORK,
    Fault.NUMERIC: Weight.DEAD_LINE,
    Fault.EXCEPTION: Weight.DEAD_LINE,
}
_LONGEST_LINE = 240
_OF_ITS_OWN = frozenset({Standing.DATA_LOADER, Standing.STORAGE, Standing.PYTHON, Standing.STOPPED})


def line_candidates(state: State) -> Iterator[Candidate]:
    """Yield the candidates that the lines of all ranks and kernels give."""
    root = root_of(state.quotes, dict(state.ranks), dict(state.stands))
    if root is not None:
        yield _of_root(state, root)
    named, quote = named_by_barrier(state.quotes)
    if quote is not None:
        does = "did not reach a barrier that another rank monitored"
        node = state.ranks[named[0]][0] if named[0] in state.ranks else ""
        yield Candidate(Weight.NAMED, "unknown", named, does, "monitored_barrier", "", (quote.words,), node)
    silent = _silent(state)
    if silent:
        does = "has printed no timeout, where all other ranks did"
        evidence = (f"{len(state.ranks) - len(silent)} of {len(state.ranks)} ranks printed that they timed out",)
        yield Candidate(Weight.SILENT, "unknown", silent, does, "", "", evidence, state.ranks[silent[0]][0])


def _of_root(state: State, root: Root) -> Candidate:
    finding = root.quote.finding
    weight = _WEIGHTS[finding.fault]
    holders = set(state.graph.holders()) & state.stands.keys()
    is_of_another = any(state.stands[number].standing in _OF_ITS_OWN for number in holders if number not in root.ranks)
    if finding.name == "c10d.watchdog_stuck" or (finding.fault is Fault.GPU and is_of_another):
        weight = Weight.NETWORK
    first = root.ranks[0] if root.ranks else None
    operation, words = state.wait_of(first) if first is not None else ("", "")
    line = finding.text[:_LONGEST_LINE]
    does = f"{_SHORT[finding.fault]}: {line}"
    whole = "" if root.ranks else _without_rank(root, does)
    return Candidate(
        weight,
        root.cause,
        root.ranks,
        does,
        operation,
        words,
        (root.quote.words,),
        root.node,
        whole,
        is_measured=root.quote.is_of_kernel,
    )


def _without_rank(root: Root, does: str) -> str:
    """Return the sentence about a line that accuses no rank."""
    if root.quote.finding.fault is Fault.DESYNC:
        line = root.quote.finding.text[:_LONGEST_LINE]
        return f"Ranks entered different collectives; which rank left the order is not known: {line}"
    return f"{f'Host {root.node}' if root.node else 'A host'} {does}"


def _silent(state: State) -> tuple[int, ...]:
    """Return the ranks without a line about a wait, if they are less than a quarter of all."""
    spoke = {each.finding.rank for each in state.quotes if each.finding.fault is Fault.WAIT}
    silent = tuple(sorted(number for number in state.ranks if number not in spoke))
    return silent if silent and len(silent) * 4 < len(state.ranks) else ()
