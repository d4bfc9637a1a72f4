"""``muster simulate --scenario`` plays a situation from a file and shows the planner's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from muster.cli.framework.document_files import MOST_FAULTS, document_of, place_words
from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import print_line, wrote_json
from muster.domain.errors import FieldFault, ValidationFailedError
from muster.domain.validation import validated
from simulator.scenarios.document import Scenario
from simulator.scenarios.world import play

HINT: Final = "docs/scenarios.md has the form."


def decisions_of(path: Path) -> dict[str, Any]:
    """Return the decisions as a document. Raises CommandError: the file cannot be read, or has a fault that
    it names.
    """
    if not path.exists():
        raise CommandError(f"{path}: there is no such file", code=Exit.NOT_FOUND)
    document = document_of(path, HINT)
    try:
        scenario = validated(Scenario, document)
        decisions = play(scenario)
    except ValidationFailedError as refused:
        raise CommandError(f"{path}: {_words_of(refused.faults)}", HINT, code=Exit.INVALID) from None
    except ValueError as fault:
        raise CommandError(f"{path}: {fault}", code=Exit.INVALID) from None
    return {"scenario": path.name, "about": scenario.about, "decisions": decisions}


def _words_of(faults: Sequence[FieldFault]) -> str:
    named = [f"{place_words(one.pointer, 'scenario')}: {one.detail}" for one in faults[:MOST_FAULTS]]
    return "; ".join([*named, *([f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else [])])


def write_result(document: dict[str, Any], as_json: Path | None) -> None:
    """Print a line a decision, or write JSON to ``as_json``."""
    if wrote_json(document, as_json):
        return
    if document["about"]:
        print_line(document["about"])
    for one in document["decisions"]:
        words = [f"{one['at_s']:>9,.0f} s  {one['job']}: {one['kind']}"]
        if "nodes" in one:
            words.append(f"on {', '.join(one['nodes'])}")
        if "victims" in one:
            words.append(f"of {', '.join(one['victims'])}")
        if "cost_gpu_s" in one:
            words.append(f"for {one['cost_gpu_s']:,.0f} GPU-s of work")
        if "starts" in one:
            words.append(_range_words(one["starts"]))
        if "why" in one:
            words.append(f"({one['why']})")
        print_line(" ".join(words))
    print_line("Simulated: nothing ran.")


def _range_words(starts: dict[str, float | None]) -> str:
    """Return earliest and latest start as the planner expects them; the latest may be unknown."""
    earliest_s, latest_s = starts["earliest_s"], starts["latest_s"]
    if latest_s is None:
        return f"starting at {earliest_s:,.0f} s or later"
    return f"starting at {earliest_s:,.0f} s" + (f" to {latest_s:,.0f} s" if latest_s != earliest_s else "")
