"""``muster simulate --scenario``: a situation in a file, and what the planner decides about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from muster.cli.exits import CommandError, Exit
from muster.cli.output import say, wrote_json
from muster.cli.policy_files import document_of
from simulator.scenarios.document import Scenario
from simulator.scenarios.world import play

MOST_FAULTS: Final = 10


def decisions_of(path: Path) -> dict[str, Any]:
    """What is written as JSON. Raises CommandError: the file cannot be read, or names what is wrong in it."""
    if not path.exists():
        raise CommandError(f"{path}: there is no such file", code=Exit.NOT_FOUND)
    document = document_of(path, hint="docs/scenarios.md has the form.")
    try:
        scenario = Scenario.model_validate(document)
        decisions = play(scenario)
    except ValidationError as fault:
        raise CommandError(f"{path}: {_faults(fault)}", code=Exit.INVALID) from None
    except ValueError as fault:
        raise CommandError(f"{path}: {fault}", code=Exit.INVALID) from None
    return {"scenario": path.name, "about": scenario.about, "decisions": decisions}


def _faults(fault: ValidationError) -> str:
    found = fault.errors(include_url=False, include_input=False)
    named = [f"{'.'.join(map(str, one['loc'])) or 'scenario'}: {one['msg']}" for one in found[:MOST_FAULTS]]
    return "; ".join([*named, *([f"and {len(found) - MOST_FAULTS} more"] if len(found) > MOST_FAULTS else [])])


def tell(document: dict[str, Any], as_json: Path | None) -> None:
    """A line a decision, or JSON where ``as_json`` says."""
    if wrote_json(document, as_json):
        return
    say(document["about"])
    for one in document["decisions"]:
        words = [f"{one['at_s']:>9,.0f} s  {one['job']}: {one['kind']}"]
        if "nodes" in one:
            words.append(f"on {', '.join(one['nodes'])}")
        if "victims" in one:
            words.append(f"of {', '.join(one['victims'])}")
        if "why" in one:
            words.append(f"({one['why']})")
        say(" ".join(words))
    say("Simulated: nothing ran.")
