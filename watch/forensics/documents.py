"""Host reports and verdicts as JSON documents.

A document is read strictly: a tenant's program may have written it. Each error names the field, its fault and the
values that are accepted. A document of a later release may hold further fields; they are skipped.
"""

from typing import Any, Final

from watch.fields import FieldError, Fields
from watch.phases import Phase
from watch.reports import Collective, Frame, HostReport, ProcessState, RankReport, StackSource
from watch.verdicts import Verdict

VERSION: Final = 1
MAX_RANKS: Final = 1024
MAX_FRAMES: Final = 256
MAX_COLLECTIVES: Final = 8192
MAX_LINES: Final = 4000
MAX_NOTES: Final = 64


def clean(text: str) -> str:
    """Return text that any reader of JSON and any database takes: without NUL, and with no half of a pair of
    surrogates. A program's paths and output may hold either.
    """
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def to_document(report: HostReport) -> dict[str, Any]:
    """Return the report as a JSON document; ``from_document`` reads it again."""
    return {
        "version": VERSION,
        "node": report.node,
        "at_ms": report.at_ms,
        "ranks": [_rank_document(rank) for rank in report.ranks],
        "lines": [clean(line) for line in report.lines],
        "readings": dict(report.readings),
        "notes": [clean(note) for note in report.notes],
        "is_busy": report.is_busy,
        "needs_gpus": report.needs_gpus,
    }


def _rank_document(rank: RankReport) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "phase": str(rank.phase),
        "step": rank.step,
        "ticks": rank.ticks,
        "still_s": rank.still_s,
        "is_declared": rank.is_declared,
        "process": str(rank.process),
        "cpu_share": rank.cpu_share,
        "gpu": rank.gpu,
        "stack": [
            {"function": clean(each.function), "file": clean(each.file), "line": each.line} for each in rank.stack
        ],
        "stack_source": str(rank.stack_source),
        "collectives": [_collective_document(each) for each in rank.collectives],
        "lines": [clean(line) for line in rank.lines],
        "has_sensor": rank.has_sensor,
        "moved_s": rank.moved_s,
        "io_bytes_per_s": rank.io_bytes_per_s,
        "children_cpu_share": rank.children_cpu_share,
        "busy_quiet_s": rank.busy_quiet_s,
    }


def _collective_document(entry: Collective) -> dict[str, Any]:
    return {
        "group": clean(entry.group),
        "sequence": entry.sequence,
        "operation": clean(entry.operation),
        "sizes": list(entry.sizes),
        "dtype": clean(entry.dtype),
        "state": clean(entry.state),
        "ranks": list(entry.ranks),
        "source": clean(entry.source),
        "is_p2p": entry.is_p2p,
        "description": clean(entry.description),
    }


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as a JSON document."""
    frame = verdict.frame
    return {
        "kind": str(verdict.kind),
        "cause": verdict.cause,
        "sentence": clean(verdict.sentence),
        "ranks": list(verdict.ranks),
        "waiting": list(verdict.waiting),
        "node": verdict.node,
        "gpu": verdict.gpu,
        "phase": str(verdict.phase),
        "step": verdict.step,
        "operation": clean(verdict.operation),
        "frame": None
        if frame is None
        else {"function": clean(frame.function), "file": clean(frame.file), "line": frame.line},
        "evidence": [clean(line) for line in verdict.evidence],
    }


def from_document(document: object) -> HostReport:
    """Return the host report that ``document`` holds."""
    fields = Fields(document)
    version = fields.integer("version")
    if version != VERSION:
        raise FieldError(f"version: {version} is not known; {VERSION} is accepted")
    return HostReport(
        node=fields.text("node"),
        at_ms=fields.integer("at_ms"),
        ranks=fields.each("ranks", _rank, MAX_RANKS),
        lines=fields.texts("lines", MAX_LINES),
        readings=fields.numbers("readings"),
        notes=fields.texts("notes", MAX_NOTES),
        is_busy=fields.flag("is_busy"),
        needs_gpus=fields.flag("needs_gpus"),
    )


def _rank(fields: Fields) -> RankReport:
    return RankReport(
        rank=fields.integer("rank"),
        phase=fields.word("phase", Phase),
        step=fields.integer("step", 0),
        ticks=fields.integer("ticks", 0),
        still_s=fields.number("still_s", 0.0) or 0.0,
        is_declared=fields.flag("is_declared"),
        process=fields.word("process", ProcessState, ProcessState.UNKNOWN),
        cpu_share=fields.number("cpu_share", None),
        gpu=fields.text("gpu", ""),
        stack=fields.each("stack", _frame, MAX_FRAMES),
        stack_source=fields.word("stack_source", StackSource, StackSource.NONE),
        collectives=fields.each("collectives", _collective, MAX_COLLECTIVES),
        lines=fields.texts("lines", MAX_LINES),
        has_sensor=fields.flag("has_sensor", default=True),
        moved_s=fields.number("moved_s", None),
        io_bytes_per_s=fields.number("io_bytes_per_s", None),
        children_cpu_share=fields.number("children_cpu_share", None),
        busy_quiet_s=fields.number("busy_quiet_s", None),
    )


def _frame(fields: Fields) -> Frame:
    return Frame(fields.text("function"), fields.text("file", ""), fields.integer("line", 0))


def _collective(fields: Fields) -> Collective:
    return Collective(
        group=fields.text("group"),
        sequence=fields.integer("sequence"),
        operation=fields.text("operation"),
        sizes=fields.integers("sizes"),
        dtype=fields.text("dtype", ""),
        state=fields.text("state", ""),
        ranks=fields.integers("ranks"),
        source=fields.text("source", "flight_recorder"),
        is_p2p=fields.flag("is_p2p"),
        description=fields.text("description", ""),
    )
