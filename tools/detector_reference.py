"""Writer of docs/reference/detectors.md (``make detector-reference``): every rule by which signals become findings.

Run as ``python -m tools.detector_reference``, with ``--check`` to hold the page to the registry. All words stand with
the rules, in ``health/detectors``.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from health.detectors.registry import RULES, Rule
from muster.domain.evidence.traits import Nature
from muster.domain.policy.document import DEFAULT_POLICY
from tools.generated_page import write_or_check

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "detectors.md"
HEAD: Final = """\
<!-- Written by `make detector-reference` from the registry of detectors. Change the rules, not this page. -->

# Detectors

A detector is a rule from reports to findings. Its numbers are in the policy under `health.detectors`, by
its name. So is its mode: `on`; `shadow`, whose findings are stored, shown as such, and have no weight; `off`.

## Severities

| severity | effect |
|---|---|
| *condemning* | quarantines the GPU |
| *degraded* | keeps new jobs away; running work may end |
| *warning* | lowers the score |
| *info* | is stored and has no weight |

Findings about a node (its ports, its fabric, its host) never quarantine a GPU. *Degraded* ones keep new work off the
whole node (`health.rule_cordon`) until they are over, or until a person releases that cordon.

Shown, without weight or not yet with it:

- links that train and fabrics that register after a boot (`health.warm_up`);
- an NVLink's XID, or XID 94, from NVML without the kernel log's words;
- reports of a node about itself while it is drained for work on it;
- findings of a rule in shadow.

Each rule of the field, with its number and test: [field-rules.md](../field-rules.md).

The maxima of `temperature` are the GPU's own reports of the last three hours (NVML's GPU_MAX and MEM_MAX), a minute
after the report at the latest. The policy's numbers are for a GPU that reports none, and are the least that counts.
"""
SECTIONS: Final = {
    Nature.MOMENT: "What happened\n\nIt does not end; its weight decays.",
    Nature.STANDING: "What every sample shows while it lasts\n\nIt ends with the first sample without it.",
    Nature.STATE: "States\n\nReported when they change and each hour. They end when another state is reported.",
    Nature.RATE: "Rates\n\nToo much within a window. Findings close in time are one evidence.",
    Nature.REPEAT: "Repetitions\n\nRules over existing evidence, asked whenever evidence is new.",
}


def written() -> str:
    """Return the page."""
    return "".join((HEAD, *(part for tells, words in SECTIONS.items() for part in _section(tells, words))))


def _section(nature: Nature, words: str) -> Iterator[str]:
    yield f"\n## {words}\n\n| detector | version | finds | source | at worst | reads | in the policy |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for rule in RULES:
        if rule.nature is nature:
            yield f"| {' | '.join(_cells(rule))} |\n"


def _cells(rule: Rule) -> tuple[str, ...]:
    fields = ", ".join(f"`{name}`" for name in type(getattr(DEFAULT_POLICY.health.detectors, rule.name)).model_fields)
    return (
        f"`{rule.name}`",
        str(rule.version),
        rule.about.text,
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
