"""``make detector-reference``: writes docs/reference/detectors.md, every rule by which signals become findings.

Run as ``python -m tools.detector_reference``, with ``--check`` to hold the page to the registry. All words stand with
the rules, in ``health/detectors``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from health.detectors.detector import Tells
from health.detectors.registry import RULES, Rule
from muster.domain.policy import DEFAULT_POLICY
from tools.generated_page import write_or_check

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "detectors.md"
HEAD: Final = """\
<!-- Written by `make detector-reference` from the registry of detectors. Change the rules, not this page. -->

# Detectors

A detector is a rule from what agents tell to a finding. Its numbers stand in the policy under `health.detectors`, by
its name; so does its mode: `on`; `shadow`, in which what it finds is kept, shown as such, and weighs nothing; `off`.

What a severity does: *condemning* quarantines a GPU, *degraded* keeps new jobs away while what runs may end, *warning*
weighs on its score, *info* is kept and weighs nothing. Findings about a node (its ports, its fabric, its host) never
quarantine a GPU: *degraded* ones hold the whole node out of new placements (`health.node_hold`) until they are over, or
somebody releases that cordon.

Told and weighing nothing yet, or at all: links that train and fabrics that register after a boot (`health.warm_up`), an
NVLink's XID that NVML tells without the kernel log's words, what a node tells of itself while it is drained for work on
it, and whatever a rule in shadow finds.

Each rule of the field that these come from, with its number and its test: [field-rules.md](../field-rules.md).

The maxima of `temperature` are those that a GPU tells of itself in the last three hours (NVML's thresholds GPU_MAX and
MEM_MAX), a minute after it told them at the latest; the policy's numbers are for one that tells none. An own maximum
under the policy's strictest number for any model counts as that number.
"""
SECTIONS: Final = {
    Tells.MOMENT: "What happened\n\nIt is not over, it decays.",
    Tells.STANDING: "What every sample shows as long as it stands\n\nIt is over with the first sample without it.",
    Tells.STATE: "States\n\nTold when they change and each hour; over when they are told to be otherwise.",
    Tells.RATE: "Rates\n\nToo much within a window; statements near in time are one evidence.",
    Tells.REPEAT: "Repetitions\n\nRules over evidence that is there, asked whenever evidence is new.",
}


def written() -> str:
    """The page."""
    return "".join((HEAD, *(part for tells, words in SECTIONS.items() for part in _section(tells, words))))


def _section(tells: Tells, words: str) -> Iterator[str]:
    yield f"\n## {words}\n\n| detector | version | finds | by whose word | at worst | reads | in the policy |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for rule in RULES:
        if rule.tells is tells:
            yield f"| {' | '.join(_cells(rule))} |\n"


def _cells(rule: Rule) -> tuple[str, ...]:
    fields = ", ".join(f"`{name}`" for name in type(getattr(DEFAULT_POLICY.health.detectors, rule.name)).model_fields)
    return (
        f"`{rule.name}`",
        str(rule.version),
        rule.about.words,
        rule.about.source,
        rule.about.worst.name.lower(),
        rule.reads,
        fields,
    )


def main(arguments: list[str]) -> int:
    return write_or_check(
        PAGE, written(), arguments, source="the registry of detectors", command="make detector-reference"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
