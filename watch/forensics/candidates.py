"""What may have caused a hang, each with a weight: the judge takes the heaviest.

===========  ==========================================================================
weight       candidate
===========  ==========================================================================
STOPPED      a process in state T: nothing else explains it
GPU          a line about a failed GPU, of a rank that does not wait for something else
MISMATCH     collectives of one number that differ between ranks
LOOP         a rank that for hours has used the processor and done nothing else
HOLDER       the awaited rank, by its stack: data loader, storage, program, GPU
DEAD_LINE    a line that ended a rank: an exception, memory
DEAD         the awaited rank, whose process has ended
NETWORK      a line about a failed network card or connection
STATE        all members started a collective, and none completed it
LAGGARD      the awaited rank, whose stack is unknown
CIRCLE       ranks that wait for each other, or that left their own order while others have no dump
NAMED        a rank that a monitored barrier names
UNSEEN       a rank without a dump, where all others wait in one collective
APART        a rank that does something else than the others, without any sequence
ALL_ALIKE    all ranks wait in one collective
SILENT       the only rank without any word about a wait
ON_GPU       ranks whose GPUs wait in a collective, and nothing else is known
===========  ==========================================================================
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from watch.forensics.line_evidence import Quote
from watch.forensics.sequences import Joined, WaitGraph
from watch.forensics.standing import Stand
from watch.reports import RankReport


class Weight(IntEnum):
    """The weight of a candidate; see the module's table. A lower value is lighter."""

    NOTHING = 0
    ON_GPU = 5
    SILENT = 10
    ALL_ALIKE = 15
    APART = 20
    UNSEEN = 25
    NAMED = 30
    CIRCLE = 35
    LAGGARD = 40
    STATE = 50
    NETWORK = 60
    DEAD = 70
    DEAD_LINE = 75
    HOLDER = 80
    LOOP = 82
    MISMATCH = 85
    GPU = 90
    STOPPED = 100


@dataclass(frozen=True, slots=True)
class Candidate:
    """One possible cause. ``does``: the predicate of the sentence, whose subject is ``ranks``.

    ``waits_in``: the collective in which the others wait, as text. ``operation``: its name alone. ``whole``: a sentence
    of its own, where no rank is the subject. ``is_measured``: it rests on a line of a host's kernel.
    """

    weight: Weight
    cause: str
    ranks: tuple[int, ...]
    does: str = ""
    operation: str = ""
    waits_in: str = ""
    evidence: tuple[str, ...] = ()
    node: str = ""
    whole: str = ""
    is_measured: bool = False


@dataclass(frozen=True)
class State:
    """All that is known of the hang, joined. ``ranks``: by number, with the host of each; ``readings``: by host.

    ``notes``: what the hosts could not read. ``busy``: ranks that are overdue although they use the processor.
    ``on_gpu``: the same, where their GPUs are known to wait in a collective.
    """

    ranks: Mapping[int, tuple[str, RankReport]]
    stands: Mapping[int, Stand]
    joined: Joined
    graph: WaitGraph
    quotes: Sequence[Quote]
    readings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    busy: tuple[int, ...] = ()
    on_gpu: tuple[int, ...] = ()

    @cached_property
    def step(self) -> int:
        """Return the step that most ranks are at."""
        steps = sorted(rank.step for _, rank in self.ranks.values())
        return steps[len(steps) // 2] if steps else 0

    def wait_of(self, missing: int) -> tuple[str, str]:
        """Return operation and words of the collective that rank ``missing`` lacks, of the smallest group."""
        waits = [wait for wait in self.graph.waits if missing in wait.missing]
        best = min(waits, key=lambda wait: len(wait.ranks) + len(wait.missing), default=None)
        return ("", "") if best is None else (best.operation, best.words)
