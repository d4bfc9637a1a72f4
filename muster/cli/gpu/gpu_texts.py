"""One GPU as text that fits 80 columns."""

from collections.abc import Iterator
from typing import Final

from muster.cli.framework.output import age, moment_of, until
from muster.cli.framework.tables import Document
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.states import Standing

MOVES_SHOWN: Final = 5
_OUT_BY_RULE: Final = ("SUSPECT", "QUARANTINED")
_OTHER_WAYS: Final = {
    "node_hold": "its node would take nothing new",
    "burn_in": "a burn-in of it would be ordered",
}


def standing_words(gpu: Document) -> str:
    """Return the effective standing; where a person has set one, with the GPU's own after it.

    A server of the release before sends neither the effective standing nor whether the GPU is cordoned.
    """
    own = Standing(gpu["standing"])
    override = None if gpu["override"] is None else Standing(gpu["override"])
    words = str(effective_standing(own, override))
    if override is not None:
        words += f" (own: {own})" if override == words else f" ({override} set, without effect)"
    return f"{words}, cordoned" if gpu.get("is_cordoned") else words


def gpu_lines(gpu: Document) -> Iterator[str]:
    yield f"{gpu['uuid']}  {standing_words(gpu)}"
    yield f"  {gpu['model']}, slot {gpu['slot_index']} of {gpu['node_name']}, {gpu['contact']}"
    yield f"  score {gpu['score']:.1f} ({gpu['score_band']}), {gpu['standing']} for {age(gpu['standing_since'])}"
    yield from _forecast(gpu)
    yield from _remedy(gpu)
    yield from _section("needs attention", list(needs_lines(gpu)))
    job = gpu["job"]
    if job is not None:
        yield f"  held by {job['job_id']} ({job['job_name']}), attempt {job['attempt_number']}, {job['state']}"
    for each in gpu["overrides"]:
        yield f"  set {each['standing']} by {each['actor']} until {moment_of(each['until'])}: {each['reason']}"
    admissions = gpu.get("admission", [])  # a server of the release before sends none
    yield from _section("which tiers take it", [_admission(each) for each in admissions])
    yield from _section("what would bring it back", list(_ways_back(admissions)))
    yield from _section("evidence", [line for each in gpu["evidence"] for line in _evidence(each)])
    yield from _section("cordons", [f"{each['id']} by {each['owner']}: {each['reason']}" for each in gpu["cordons"]])
    yield from _section("repairs", [_repair(each) for each in gpu["repairs"]])
    yield from _section("signals", list(_signals(gpu)))
    told = gpu.get("attributes", {})  # a server of the release before sends none
    yield from _section("set up as", [f"{name.replace('_', ' ')}: {told[name]}" for name in sorted(told)])
    yield from _section("moves", [_move(each) for each in gpu["moves"][:MOVES_SHOWN]])


def _forecast(gpu: Document) -> Iterator[str]:
    yield from _by_the_breaker(gpu)
    if gpu["next_evaluation_at"] is not None:
        yield f"  judged again {until(gpu['next_evaluation_at'])}"


def _by_the_breaker(gpu: Document) -> Iterator[str]:
    """Yield what the rules would do if the breaker let them, and what holds until then."""
    proposed, waiting = (
        gpu["proposed"],
        gpu.get("breaker_proposals"),
    )  # a server of the release before sends none of these
    words = []
    if proposed is not None and proposed["to_standing"] in _OUT_BY_RULE:
        words.append(f"would be {proposed['to_standing']}, if the breaker lets it: {proposed['text']}")
    others = [each for each in waiting or [] if each["way"] in _OTHER_WAYS]
    words += [f"{_OTHER_WAYS[each['way']]}, if the breaker lets it: {each['text']}" for each in others]
    yield from (f"  {each}" for each in words)
    if words:
        is_barred = waiting is None or any(each["bars_placement"] for each in waiting)
        until_then = "nothing new is placed on it" if is_barred else "it takes work as before"
        yield f"  until then {until_then}; a person closes the breaker: `muster breaker list`"


def _remedy(gpu: Document) -> Iterator[str]:
    remedy = gpu.get("remedy")  # a server of the release before sends none
    if remedy is None:
        return
    yield f"  Remedy due: {remedy['text']}"
    attempt = f"attempt {remedy['attempt']} of {remedy['attempts_max']} for {remedy['fault_group']}"
    if remedy["action"] == "swap":
        yield f"    for {remedy['fault_group']}: have the board replaced, then `muster gpu retire`"
        return
    then = f", then {', '.join(map(_plain, remedy['then']))}" if remedy["then"] else ""
    yield f"    {attempt}{then}"
    if gpu["standing"] != "QUARANTINED":
        yield "    quarantine it first: its jobs are moved away, and no repair begins before"


def started_words(gpu: Document, requested: str | None) -> str:
    """Return the action of a repair that was started; if none was named, that it was the due remedy."""
    begun = next((each for each in gpu["repairs"] if each["ended_at"] is None), None)
    if begun is None:
        return "no repair is open"
    by = f" by its agent ({begun['verb']})" if begun["by"] == "agent" else ""
    due = "" if requested is not None else ", the remedy that is due"
    return f"{_plain(begun['action'])}{by} for {begun['fault_group']}{due}"


def needs_lines(place: Document) -> Iterator[str]:
    """Yield the open incidents about a GPU or a node; a server of the release before sends none."""
    for each in place.get("incidents", []):
        yield from (f"{each['id']}: {each['summary']}", f"  {each['to_do']}")


def _plain(action: str) -> str:
    return action.replace("_", " ")


def _admission(admission: Document) -> str:
    why = "; ".join(refused["text"] for refused in admission["refusals"])
    if not admission["is_admitted"]:
        return f"{admission['tier']}: no: {why}"
    return f"{admission['tier']}: yes, busy: {why}" if why else f"{admission['tier']}: yes"


def _ways_back(admissions: list[Document]) -> Iterator[str]:
    """Yield the ways of return to service; tiers with the same ways stand together."""
    tiers: dict[str, list[Document]] = {}
    for each in admissions:
        if each["recovery_paths"]:
            tiers.setdefault(repr(each["recovery_paths"]), []).append(each)
    for alike in tiers.values():
        yield f"to {' and '.join(each['tier'] for each in alike)}:"
        for number, way in enumerate(alike[0]["recovery_paths"]):
            yield f"  {'or ' if number else ''}{', and '.join(map(_condition, way['conditions']))}"


def _condition(condition: Document) -> str:
    which = f" ({condition['subject_id']})" if condition["subject_id"] else ""
    when = "" if condition["at"] is None else f" ({until(condition['at'])})"
    return f"{condition['text']}{which}{when}"


def _evidence(found: Document) -> list[str]:
    weight = f"-{found['points']:.1f}" if found["points"] else "0"
    state = "dismissed" if found["dismissed_at"] else "suspended" if found["is_suspended"] else found["severity"]
    why = found.get("why_no_points")  # a server of the release before sends none
    told = ", ".join(found["sources"]) + ("" if found["trust"] == "measured" else f" ({found['trust']})")
    lines = [
        f"{found['id']}  {state}  {weight}  {age(found['last_seen_at'])} ago  {told}",
        f"  {found['fault_key']}: {found['summary']}",
    ]
    if why is not None:
        lines.append(f"  weighs nothing: {why}")
    if found["dismissed_at"]:
        lines.append(f"  dismissed by {found['dismissed_by']}: {found['dismiss_reason']}")
    return lines


def _signals(gpu: Document) -> Iterator[str]:
    """Yield the age of each group of signals; a server of the release before sends none."""
    for each in gpu.get("signals", []):
        came = "nothing yet" if each["delivered_at"] is None else f"{age(each['delivered_at'])} ago"
        late = f", {each['late_samples']} samples late in a row" if each["late_samples"] else ""
        overdue = f", overdue after {each['max_age_s']:g} s" if each["is_overdue"] else ""
        yield f"{each['group'].replace('_', ' ')}: {came}{late}{overdue}"
    latency_ms = gpu.get("driver_latency_ms")
    if latency_ms is not None:
        yield f"the driver took {latency_ms:g} ms for its newest sample"


def _repair(repair: Document) -> str:
    state = repair["outcome"] or repair["state"].replace("_", " ")
    by = "" if repair["by"] == "person" else f" by the agent ({repair['verb']})"
    words = f": {repair['text']}" if repair["by"] == "agent" and repair["text"] else ""
    return f"{repair['action']}{by} for {repair['fault_group']}, {age(repair['began_at'])} ago: {state}{words}"


def _move(move: Document) -> str:
    return f"{moment_of(move['at'])}  {move['from'] or ''} → {move['to']}  by {move['actor']}: {move['reason']}"


def _section(name: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield f"{name}:"
        yield from (f"  {line}" for line in lines)
