"""Writer of docs/reference/xid.md (``make xid-reference``): each XID, and where other tools judge it otherwise.

Run as ``python -m tools.xid_reference``, with ``--check`` to compare the page with ``health/xid/knowledge.json``. The
other tools' behaviour was taken from their sources in 2026; none of it decides anything here.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from health.xid.catalogue import CATALOGUE, KNOWLEDGE, XidEntry
from muster.domain.evidence.findings import Severity
from tools.generated_page import write_or_check

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "xid.md"
HEAD: Final = """\
<!-- Written by `make xid-reference` from health/xid/knowledge.json. Change the data, not this page. -->

# XIDs

An XID is an error that NVIDIA's driver writes to the kernel log. `muster xid 95` explains one of them,
`dmesg | muster xid` reads a log.

## Which source decides

1. The recovery action that the driver itself asks for (NVML; since R565 also an XID 154 in the log).
2. The error's own words (NVLink registers of an XID 74, unit and status of 144 to 150, resets of a memory error).
3. The row below.

NVML reports an error without its words. For an NVLink's error and for XID 94 the judge waits ten seconds for the words
of the log, which decide if they come. Otherwise, if both sources report one error, the more severe stands.

The driver's action raises the severity by itself: the fault that it names counts. It lowers the severity only by a
drain, for an XID whose row asks for a reset or reboot. If NVML or an XID 154 first asks for the drain with the XID or
within seconds after it, the XID is stored, has no weight, and names the source that decided.

A drain never lowers an XID that may have made data wrong, that a reading shows too, or that is a link's. "None" never
lowers one, since a driver that has not noticed the error reports it; nor does an action that the driver reported
before. A GPU that was quarantined before the action arrived stays quarantined until it has proved itself.

An unknown code is watched and shown. It never resets or reboots anything.

## The words of memory errors and clean-ups

| the line of a 48, 94, 95, 171 or 172 says | action | severity |
|---|---|---|
| `RST: Yes` | reset_gpu | condemning |
| `RST: No, D-RST: Yes` | drain_and_reset | degraded |
| `Contained: …` and `RST: No, D-RST: No` | restart_job | info: the program's |
| `Uncontained: …` and `RST: No, D-RST: No`, or none of it | the row's | the row's |

The words never make an XID milder that may have made data wrong (48, 95, 171, 172). If ECC counters or remapped rows
rise with an XID 94, those readings decide. `muster xid` also shows the unit, the memory and the parts in a line.

An XID 45 is the clean-up of channels. One that states "due to previous errors" gets no advice about the fabric manager.

## Severities

*Condemning* quarantines the GPU. *Degraded* keeps new jobs away, and running work may end. *Warning* lowers the
score. *Info* is stored and has no weight, since a program can cause it by itself.
"""
OUT: Final = "out"
BY_NVIDIA: Final = "NVIDIA's own class; by itself it is no evidence against the GPU"
BY_US: Final = "it does not pass by itself: it needs a repair, or at least a reset"
WATCHED: Final = "its rate, or the events after it, decide; by itself it takes nothing out"
BY_NVIDIA_OUT: Final = "NVIDIA's own class: a restart of the program is not enough"


def written() -> str:
    """Return the page."""
    return "".join((HEAD, *_all_codes(), *_differences()))


def _all_codes() -> Iterator[str]:
    yield "\n## Every code\n\nCodes without a use in the driver's catalogue are left out: they are watched.\n\n"
    yield "| XID | what it is | class | action | NVIDIA's class | severity | GPUs | an XID 154 comes with it |\n"
    yield "|---|---|---|---|---|---|---|---|\n"
    for entry in CATALOGUE.values():
        if not entry.is_in_use:
            continue
        nvidia = entry.nvidia.value if entry.nvidia is not None else "none"
        wrong_data = ", data may be wrong" if entry.threatens_correctness else ""
        cells = (
            str(entry.code),
            entry.name,
            entry.xid_class.value,
            entry.action.value,
            nvidia if nvidia != entry.xid_class.value else "same",
            entry.severity.name.lower() + wrong_data,
            ", ".join(entry.scope) or "all",
            _since(entry),
        )
        yield f"| {' | '.join(cells)} |\n"


def _since(entry: XidEntry) -> str:
    if entry.announced_by_154_since is None:
        return ""
    return f"since R{entry.announced_by_154_since}" if entry.announced_by_154_since else "always"


def _differences() -> Iterator[str]:
    others: dict[str, dict[str, Any]] = KNOWLEDGE["others"]
    yield "\n## Where others judge otherwise\n\n"
    yield (
        "*Out*: the tool takes the GPU or its node out of service, or calls the error fatal; its term or request"
        " follows. A row is here if a tool takes out or warns of a GPU that we do not, or leaves in service"
        " one that we take out. Kubernetes' device plugin calls every XID fatal but six: it is shown, and adds a row"
        " only if it ignores an XID for which we take the GPU out."
        " Codes without a use are left out: gpud asks for a reboot at some twenty of them.\n\n"
    )
    yield f"| XID | what it is | Muster | {' | '.join(others)} | why ours |\n|---|---|---|{'---|' * len(others)}---|\n"
    for entry in CATALOGUE.values():
        verdicts = {name: verdict_of(tool, entry.code) for name, tool in others.items()}
        if entry.is_in_use and differs(entry, verdicts):
            theirs = (in_its_own_words(tool, entry.code) for tool in others.values())
            cells = (str(entry.code), entry.name, _ours(entry), *theirs, reason_of(entry))
            yield f"| {' | '.join(cells)} |\n"


def verdict_of(tool: dict[str, Any], code: int) -> str:
    """Return ``out``, ``warns``, ``passes`` or ``nothing``."""
    return next((verdict for verdict in (OUT, "warns", "passes") if code in tool.get(verdict, ())), str(tool["else"]))


def in_its_own_words(tool: dict[str, Any], code: int) -> str:
    """Return the verdict, with the tool's term or request after it, if it has one."""
    verdict = verdict_of(tool, code)
    own = next((words for words, codes in tool.get("own", {}).items() if code in codes), None)
    words = [each for each in (tool.get("called", {}).get(verdict), own) if each is not None]
    return f"{verdict} ({': '.join(words)})" if words else verdict


def differs(entry: XidEntry, verdicts: dict[str, str]) -> bool:
    """Return whether a tool takes out what we do not, warns of what we pass, or leaves in service what we take out."""
    if entry.severity is Severity.CONDEMNING:
        return any(verdict != OUT for verdict in verdicts.values())
    told = {OUT, "warns"} if entry.severity is Severity.INFO else {OUT}
    return any(verdict in told for name, verdict in verdicts.items() if name != "device plugin")


def reason_of(entry: XidEntry) -> str:
    """Return why our row is as it is; never empty."""
    if entry.why:
        return entry.why
    if entry.severity is Severity.CONDEMNING:
        return BY_NVIDIA_OUT if entry.nvidia is entry.xid_class else BY_US
    return WATCHED if entry.severity is Severity.WARNING else BY_NVIDIA


def _ours(entry: XidEntry) -> str:
    if entry.severity is Severity.CONDEMNING:
        return OUT
    return {Severity.DEGRADED: "no new jobs", Severity.WARNING: "watches"}.get(entry.severity, "passes")


def main(arguments: list[str]) -> int:
    return write_or_check(PAGE, written(), arguments, source="health/xid/knowledge.json", command="make xid-reference")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
