"""Labelled bundles in a compact form: stacks and collectives as words, one string each."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watch.phases import Phase
from watch.reports import Collective, Frame, HostReport, ProcessState, RankReport, StackSource
from watch.verdicts import Verdict

_COLLECTIVE = re.compile(
    r"(?P<group>\S+) (?P<sequence>\d+) (?P<operation>.+?) (?P<sizes>[\dx]+|-) (?P<dtype>\S+) (?P<state>\S+)"
    r"(?: \[(?P<ranks>[\d,]+)\])?(?P<p2p> p2p)?"
)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle with its label. ``rank``: the first rank at fault; None: none can be named."""

    name: str
    cause: str
    rank: int | None
    node: str | None
    root_line: str | None
    reports: tuple[HostReport, ...]


def bundles_of(path: Path) -> tuple[Bundle, ...]:
    return tuple(_bundle(case) for case in json.loads(path.read_text()))


def is_right(bundle: Bundle, verdict: Verdict) -> bool:
    """Cause, first rank and host are the label's; the root line stands in the evidence."""
    named = verdict.ranks[0] if verdict.ranks else None
    is_on_host = bundle.node is None or verdict.node == bundle.node
    has_line = bundle.root_line is None or any(bundle.root_line in line for line in verdict.evidence)
    return (verdict.cause, named) == (bundle.cause, bundle.rank) and is_on_host and has_line


def _bundle(case: Mapping[str, Any]) -> Bundle:
    expect = case["expect"]
    reports = tuple(
        HostReport(
            node=node,
            at_ms=1_795_792_065_000,
            ranks=tuple(rank_of(int(number), fields) for number, fields in host["ranks"].items()),
            lines=tuple(host.get("lines", ())),
        )
        for node, host in case["hosts"].items()
    )
    return Bundle(
        case["name"], expect["cause"], expect.get("rank"), expect.get("node"), expect.get("root_line"), reports
    )


def rank_of(number: int, fields: Mapping[str, Any]) -> RankReport:
    return RankReport(
        rank=number,
        phase=Phase(fields.get("phase", "step")),
        step=fields.get("step", 0),
        ticks=fields.get("ticks", 0),
        still_s=fields.get("still", 0.0),
        is_declared=fields.get("declared", False),
        process=ProcessState(fields.get("process", "unknown")),
        cpu_share=fields.get("cpu"),
        gpu=fields.get("gpu", ""),
        stack=tuple(_frame(each) for each in fields.get("stack", ())),
        stack_source=StackSource(fields.get("stack_source", "sensor_thread" if fields.get("stack") else "none")),
        collectives=tuple(collective_of(each) for each in fields.get("collectives", ())),
        lines=tuple(fields.get("lines", ())),
    )


def _frame(text: str) -> Frame:
    function, _, place = text.partition(" ")
    file, _, line = place.rpartition(":")
    return Frame(function, file, int(line or 0))


def collective_of(text: str) -> Collective:
    """Return the collective of ``GROUP NUMBER OPERATION SIZES TYPE STATE [RANKS]``; ``muster:0`` is the runtime's."""
    found = _COLLECTIVE.fullmatch(text)
    assert found is not None, text
    group = found["group"]
    return Collective(
        group=group.removeprefix("muster:"),
        sequence=int(found["sequence"]),
        operation=found["operation"],
        sizes=tuple(int(each) for each in found["sizes"].split("x")) if found["sizes"] != "-" else (),
        dtype=found["dtype"],
        state="" if found["state"] == "-" else found["state"],
        ranks=tuple(int(each) for each in (found["ranks"] or "").split(",") if each),
        source="muster" if group.startswith("muster:") else "flight_recorder",
        is_p2p=bool(found["p2p"]),
    )
