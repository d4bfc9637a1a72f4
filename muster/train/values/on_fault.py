"""Reaction to a fault of values: stop, roll back, or roll back and skip the batch.

| rule | reaction |
|---|---|
| ``stop`` | the run ends as ``diverged``; a new attempt continues from the newest checkpoint |
| ``rollback``, ``rollback:N``, ``rollback:N:BUDGET`` | all ranks restore the N-th newest checkpoint from before the fault, and train on; the BUDGET-th rollback of an attempt (3) is its last, and the next fault ends it |
| ``skip``, ``skip:N``, ``skip:N:BUDGET`` | the same, and the samples of the faulty steps are skipped |

Copies of one tensor that differ are rolled back under each of the rules, with the same budget: there the program's
values are right on the other ranks.
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

import re
from dataclasses import dataclass

STOP, ROLLBACK, SKIP = "stop", "rollback", "skip"
BUDGET = 3
_RULE = re.compile(r"(?P<action>stop|rollback|skip)(:(?P<generations>[1-9][0-9]?))?(:(?P<budget>[1-9][0-9]?))?")


@dataclass(frozen=True)
class ValueFaultRule:
    """Rule of one run. ``generations``: how many checkpoints it goes back; ``budget``: the rollbacks of an attempt."""

    action: str = STOP
    generations: int = 1
    budget: int = BUDGET

    @property
    def rolls_back(self) -> bool:
        return self.action != STOP

    @classmethod
    def of(cls, text: str) -> ValueFaultRule:
        """Return the rule that ``text`` states. Raises ValueError, with the accepted forms."""
        found = _RULE.fullmatch(text)
        if found is None or (found["action"] == STOP and text != STOP):
            raise ValueError(
                f"on_value_fault={text!r}: must be stop, rollback[:GENERATIONS[:BUDGET]] or "
                "skip[:GENERATIONS[:BUDGET]], with numbers from 1 to 99, such as rollback:2"
            )
        return cls(found["action"], int(found["generations"] or 1), int(found["budget"] or BUDGET))
