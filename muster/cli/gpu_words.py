"""One GPU in words that fit 80 columns."""

import textwrap
from datetime import UTC, datetime
from typing import Any, Final

import typer

from muster.cli.output import age

Document = dict[str, Any]
WIDTH: Final = 80
MOVES_SAID: Final = 5


def standing_words(gpu: Document) -> str:
    """A person's override stands beside what the evidence says, and never hides it."""
    return f"{gpu['standing']}, set {gpu['override']}" if gpu["override"] else str(gpu["standing"])


def say_gpu(gpu: Document) -> None:
    typer.echo(f"{gpu['uuid']}  {standing_words(gpu)}")
    _line(f"{gpu['model']}, slot {gpu['slot_index']} of {gpu['node_name']}, {gpu['contact']}")
    _line(f"score {gpu['score']:.1f} ({gpu['score_band']}), {gpu['standing']} for {age(gpu['standing_since'])}")
    if gpu["proposed"] is not None and gpu["proposed"]["to_standing"] == "QUARANTINED":
        _line(f"would be {gpu['proposed']['to_standing']}, if the breaker lets it: {gpu['proposed']['words']}")
        _line("until then nothing new is placed on it; a person closes the breaker: `muster breaker list`")
    if gpu["next_look_at"] is not None:
        _line(f"judged again {until(gpu['next_look_at'])}")
    job = gpu["job"]
    if job is not None:
        _line(f"held by {job['job_id']} ({job['job_name']}), attempt {job['attempt_number']}, {job['state']}")
    for each in gpu["overrides"]:
        _line(f"set {each['standing']} by {each['actor']} until {each['until'][:16]}: {each['reason']}")
    _section("what would change that", [_way(way) for way in gpu["ways_up"]])
    _section("evidence", [line for each in gpu["evidence"] for line in _evidence(each)])
    _section("cordons", [f"{each['id']} by {each['owner']}: {each['reason']}" for each in gpu["cordons"]])
    _section("repairs", [_repair(each) for each in gpu["repairs"]])
    _section("moves", [_move(each) for each in gpu["moves"][:MOVES_SAID]])


def until(moment: str) -> str:
    """When, from now, in one unit."""
    seconds = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    if seconds <= 0:
        return "now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"in {seconds / size:.0f} {unit}"
    return f"in {seconds:.0f} s"


def _way(way: Document) -> str:
    when = "" if way["at"] is None else f", {until(way['at'])} at the earliest"
    which = f" ({', '.join(way['evidence_ids'])})" if way["evidence_ids"] else ""
    return f"{way['to_standing']}: {way['words']}{when}{which}"


def _evidence(found: Document) -> list[str]:
    weight = f"-{found['points']:.1f}" if found["points"] else "0"
    state = "dismissed" if found["dismissed_at"] else "suspended" if found["is_suspended"] else found["severity"]
    told = ", ".join(found["sources"]) + ("" if found["trust"] == "measured" else f" ({found['trust']})")
    lines = [
        f"{found['id']}  {state}  {weight}  {age(found['last_seen_at'])} ago  {told}",
        f"  {found['fault_key']}: {found['summary']}",
    ]
    if found["dismissed_at"]:
        lines.append(f"  dismissed by {found['dismissed_by']}: {found['dismiss_reason']}")
    return lines


def _repair(repair: Document) -> str:
    state = repair["outcome"] or "under way"
    return f"{repair['action']} for {repair['fault_group']}, {age(repair['began_at'])} ago: {state}"


def _move(move: Document) -> str:
    return f"{move['at'][:19]}  {move['from'] or ''} → {move['to']}  by {move['actor']}: {move['reason']}"


def _section(name: str, lines: list[str]) -> None:
    if lines:
        typer.echo(f"{name}:")
        for line in lines:
            _line(line)


def _line(words: str) -> None:
    deep = "  " + " " * (len(words) - len(words.lstrip()))
    for line in textwrap.wrap(words.strip(), WIDTH, initial_indent=deep, subsequent_indent=deep + "  "):
        typer.echo(line)
