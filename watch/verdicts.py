"""Verdicts of the watch: one kind of fault of running work, with the rank that caused it and the evidence for it."""

from dataclasses import dataclass

from muster.domain.exit.fault_lines import Role
from muster.domain.job.verdicts import VerdictKind
from watch.phases import Phase
from watch.reports import Frame

__all__ = ["Role", "Verdict", "VerdictKind"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the watch states of a running attempt.

    ``ranks``: the ranks that caused it, the likeliest first; empty if the evidence names none. ``operation``: the
    collective or the part of a step in which the fault shows. ``cause``: a word such as ``skipped_collective``,
    ``stopped_process``, ``data_loader``, ``storage``, ``endless_python``, ``dead_loop``. ``evidence``: lines that state
    what the verdict rests on. ``sentence``: one sentence with rank, host, GPU, operation, frame and line. ``waiting``:
    the ranks that only wait for the others. ``is_measured``: it rests on a line of a host's kernel, which no program
    writes.
    """

    kind: VerdictKind
    cause: str
    ranks: tuple[int, ...]
    node: str
    gpu: str
    phase: Phase
    step: int
    operation: str
    frame: Frame | None
    evidence: tuple[str, ...]
    sentence: str
    waiting: tuple[int, ...] = ()
    is_measured: bool = False
