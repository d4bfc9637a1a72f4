"""Findings of the doctor about a fleet: loops of the control plane, hosts, GPUs, incidents, breakers, unsent messages.

A loop that stands still is a failure; none of the others is.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from muster.cli.framework.exits import exit_of
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import Document
from muster.client.transport import Problem

Counts = Mapping[str, float]
OUTBOX_LATE_S: Final = 30.0
_SAMPLE: Final = re.compile(r'(?P<name>\w+)(?:\{\w+="(?P<label>(?:[^"\\]|\\.)*)".*\})? (?P<number>\S+)')
MOST_INCIDENTS: Final = 20
"""The newest open incidents that the doctor names; `muster incident list` has all."""
_ESCAPED: Final = re.compile(r"\\(.)")
_OUT_OF_SORTS: Final = ("SUSPECT", "QUARANTINED", "REPAIR")


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Literal["ok", "warn", "fail"]
    words: str


def fleet_findings() -> Iterator[Finding]:
    """Yield the findings; none if the key may not read the fleet."""
    try:
        with open_client(as_operator=True) as client:
            figures, breakers, system = _figures(client.figures()), client.breakers(), client.system()
            incidents = list(islice(client.incidents(state="open", limit=MOST_INCIDENTS), MOST_INCIDENTS))
    except Exception as fault:  # noqa: BLE001  # any fault is the finding
        if not (isinstance(fault, Problem) and fault.status == 403):
            yield Finding("fleet", "warn", f"cannot be read: {exit_of(fault)[1]}")
        return
    yield _loops(system.get("loops", ()))  # a server of the release before has none
    yield _hosts(figures.get("muster_nodes", {}))
    yield _gpus(figures.get("muster_gpus", {}))
    yield from _incidents(figures.get("muster_incidents_open", {}), incidents)
    yield _breakers(breakers)
    yield _outbox(_one(figures, "muster_outbox_pending"), _one(figures, "muster_outbox_oldest_seconds"))


def _loops(loops: Sequence[Document]) -> Finding:
    """Return the finding about the control plane's loops, by the age of their progress."""
    if not loops:
        return Finding("loops", "ok", "this server reports none")
    stalled = [each for each in loops if each["is_stalled"]]
    if stalled:
        words = ", ".join(f"{each['name']} for {each['age_s']:.0f} s" for each in stalled)
        return Finding("loops", "fail", f"not advanced: {words}; start again: {_commands(stalled)}")
    unseen = [each for each in loops if each["age_s"] is None]
    if unseen:
        words = ", ".join(str(each["name"]) for each in unseen)
        return Finding("loops", "warn", f"never reported: {words}; start: {_commands(unseen)}")
    return Finding("loops", "ok", "each advances")


def _commands(loops: Sequence[Document]) -> str:
    return ", ".join(f"`{command}`" for command in dict.fromkeys(each["started_by"] for each in loops))


def _figures(text: str) -> dict[str, dict[str, float]]:
    """Return name → the value of its first label → number; a figure without labels has the one label ''.

    Only what our own server writes is read: it writes no time behind a number. Raises ValueError for all else.
    """
    found: dict[str, dict[str, float]] = {}
    for line in filter(None, text.splitlines()):
        if line.startswith("#"):
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            raise ValueError(f"{line[:80]!r} is no figure")
        label = _ESCAPED.sub(lambda each: "\n" if each[1] == "n" else each[1], sample["label"] or "")
        found.setdefault(sample["name"], {})[label] = float(sample["number"])
    return found


def _one(figures: Mapping[str, Counts], name: str) -> float:
    return figures.get(name, {}).get("", 0.0)


def _hosts(contacts: Counts) -> Finding:
    away = {contact: count for contact, count in contacts.items() if contact != "LIVE"}
    if not away:
        return Finding("hosts", "ok", f"{sum(contacts.values()):.0f}, all LIVE" if contacts else "none are enrolled")
    words = f"{sum(away.values()):.0f} of {sum(contacts.values()):.0f} are not LIVE ({_words(away)})"
    return Finding("hosts", "warn", f"{words}; see `muster node list`")


def _gpus(standings: Counts) -> Finding:
    others = {standing: count for standing, count in standings.items() if standing != "HEALTHY"}
    if not others:
        return Finding(
            "GPUs", "ok", f"{sum(standings.values()):.0f}, all HEALTHY" if standings else "none are enrolled"
        )
    words = f"{sum(others.values()):.0f} of {sum(standings.values()):.0f} are not HEALTHY ({_words(others)})"
    if any(others.get(standing) for standing in _OUT_OF_SORTS):
        return Finding("GPUs", "warn", f"{words}; see `muster gpu list`")
    return Finding("GPUs", "ok", words)


def _incidents(kinds: Counts, newest: Sequence[Document]) -> Iterator[Finding]:
    """Yield how many are open, then the newest by name, each with what to do."""
    if not kinds and not newest:
        yield Finding("incidents", "ok", "none is open")
        return
    # Both were read at about the same time: the list alone names an incident that opened in between.
    counts = kinds or Counter(each["kind"] for each in newest)
    yield Finding(
        "incidents", "warn", f"{sum(counts.values()):.0f} open ({_words(counts)}); see `muster incident list`"
    )
    for each in newest:
        to_do = each.get("to_do") or each["closes"] or "Close it once it is handled."  # the release before has no to_do
        yield Finding(each["kind"].replace("_", " "), "warn", f"{each['summary']}. {to_do}")


def _breakers(breakers: Sequence[Document]) -> Finding:
    scopes = [str(scope["scope"]) for each in breakers for scope in each["scopes"] if scope["is_open"]]
    if not scopes:
        return Finding("breaker", "ok", "closed")
    return Finding("breaker", "warn", f"open in {', '.join(scopes)}; see `muster breaker list`")


def _outbox(num_pending: float, oldest_s: float) -> Finding:
    if not num_pending:
        return Finding("outbox", "ok", "no message waits")
    verdict: Literal["ok", "warn"] = "warn" if oldest_s > OUTBOX_LATE_S else "ok"
    return Finding("outbox", verdict, f"{num_pending:.0f} messages wait, the oldest for {oldest_s:.0f} s")


def _words(counts: Counts) -> str:
    return ", ".join(f"{count:.0f} {name}" for name, count in sorted(counts.items()))
