"""Declared exit codes 16 and 17 on one machine: which GPUs the next attempt gets, and what ends the run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from muster.domain.exit.exits import Verdict, parse_exit_record
from muster.domain.exit.rerun_codes import FAILED_VALIDATION, RUN_ELSEWHERE, Stated, stated_by
from workers.local.plan import RunPlan

_ADVICE: Final = "read its log; the same command runs it again"


@dataclass(slots=True)
class LocalGpus:
    """GPUs of the run's attempts. ``spare``: GPUs of this machine that no attempt has had."""

    used: tuple[str, ...]
    spare: tuple[str, ...] = ()

    def after(self, plan: RunPlan, verdict: Verdict, record: Mapping[str, Any]) -> str | None:
        """Leave suspect GPUs for others, after an end that asked for it. Return what follows, as text."""
        if verdict.rerun_code != RUN_ELSEWHERE:
            return None
        num_ranks = plan.spec.shape.num_ranks_per_node
        stated = stated_by(parse_exit_record(record).ranks, plan.spec.rerun_exit_codes, num_ranks)
        suspects = self._suspects(stated, num_ranks)
        if not suspects or len(suspects) > len(self.spare):
            return "it asked for another GPU, and this machine has none that is free of the run: it runs on the same"
        taken, self.spare = self.spare[: len(suspects)], self.spare[len(suspects) :]
        instead = dict(zip(suspects, taken, strict=True))
        self.used = tuple(instead.get(gpu, gpu) for gpu in self.used)
        return f"it asked for another GPU: it runs on {', '.join(taken)} instead of {', '.join(suspects)}"

    def _suspects(self, stated: Stated, num_ranks: int) -> Sequence[str]:
        if stated.rank is None or num_ranks != len(self.used):
            return self.used
        return self.used[stated.rank : stated.rank + 1]


def why_it_ends(verdict: Verdict) -> str | None:
    """Return why a declared exit code ends the whole run; None if another attempt may follow."""
    if verdict.rerun_code != FAILED_VALIDATION:
        return None
    return f"{verdict.cause}: {verdict.proof}; another attempt would fail so again: {_ADVICE}"
