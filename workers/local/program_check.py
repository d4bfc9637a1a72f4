"""``muster train check``: a program runs undisturbed, then is killed and resumed, and both records are compared."""

import json
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from muster.domain.states import JobState
from watch.reproducibility.causes import Cause
from watch.reproducibility.judge import Judgement, Runs, judge
from watch.reproducibility.records import Attempt, RecordError, parse_attempt
from workers.local.local_run import Ask, LocalRun
from workers.local.plan import RunFolder, RunPlan

FEWEST_AFTER: Final = 2
"""Steps that follow the saved one at the least: the killed attempt does the first again, and the kill cuts the next."""
_SYNCHRONOUS: Final = {"MUSTER_TRAIN_SYNCHRONOUS": "1"}
_RECORDS: Final = "records"


class CheckError(Exception):
    """Reason why a program cannot be checked, and what to do."""

    def __init__(self, words: str, suggestion: str) -> None:
        super().__init__(words)
        self.suggestion = suggestion


class InterruptedCheckError(Exception):
    """The user has stopped the check."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What is checked. ``save_at``: the step that is saved; the kill follows one step later.

    ``ignored``: names of variables that decide nothing.
    """

    run: RunPlan
    steps: int
    save_at: int
    ignored: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check: records, judgement, and the names of the runs that were made."""

    runs: Runs
    judgement: Judgement
    made: tuple[str, ...]


class ProgramCheck:
    """Check of one program in a folder of its own. ``report``: prints a sentence about it."""

    def __init__(self, plan: CheckPlan, folder: Path, report: Callable[[str], None], ask: Ask) -> None:
        self._plan = plan
        self._folder = folder
        self._report = report
        self._ask = ask
        self._made: list[str] = []

    def run(self) -> Checked:
        """Make the runs that the judgement needs.

        Raises:
            CheckError: the program cannot be checked.
            InterruptedCheckError: the user has stopped it.
            OSError: the folder cannot be written, or this machine cannot start processes.
        """
        plan, gpus = self._plan, self._plan.run.gpus
        is_single = plan.run.spec.shape.num_ranks_per_node == 1
        first = gpus[:1] if is_single else gpus
        whole = self._undisturbed("straight", first)
        killed, resumed = self._resumed(first)
        runs = Runs(whole, killed, resumed)
        judgement = judge(runs, plan.ignored)
        if not judgement.is_same and judgement.cause is not Cause.NONDETERMINISTIC:
            runs = replace(runs, again=self._undisturbed("straight-again", first))
            judgement = judge(runs, plan.ignored)
        elif judgement.is_same and is_single and len(gpus) > 1:
            runs = replace(runs, elsewhere=self._undisturbed("other-gpu", gpus[1:2]))
            judgement = judge(runs, plan.ignored)
        return Checked(runs, judgement, tuple(self._made))

    def _undisturbed(self, name: str, gpus: tuple[str, ...]) -> Attempt:
        self._report(f"{name}: running {self._plan.steps} steps without a disturbance")
        ended = self._run(name, gpus, kill_at=None, max_restarts=0)
        attempt = self._recorded(name, 1)
        if attempt is None:
            self._raise_without_records(name, ended)
        if ended["state"] != JobState.SUCCEEDED:
            raise CheckError(f"the {name} run failed: {ended['state_reason']}", self._output_of(name))
        self._require_steps(name, attempt)
        return attempt

    def _resumed(self, gpus: tuple[str, ...]) -> tuple[Attempt, Attempt]:
        plan, name = self._plan, "resumed"
        self._report(f"{name}: saving at step {plan.save_at}, killing one step later, and resuming up to {plan.steps}")
        ended = self._run(name, gpus, kill_at=plan.save_at + 1, max_restarts=1)
        killed, resumed = self._recorded(name, 1), self._recorded(name, 2)
        if killed is None:
            self._raise_without_records(name, ended)
        if resumed is None:
            raise CheckError(
                f"no resumed attempt came to its first step: {ended['state_reason']}", self._output_of(name)
            )
        if resumed.first_step != plan.save_at:
            raise CheckError(
                f"the resumed attempt began at step {resumed.first_step}, and not at {plan.save_at}: no checkpoint of "
                "that step was used",
                f"Let the program save where MUSTER_CHECKPOINT_DIR says; it must not set it. {self._output_of(name)}",
            )
        if ended["state"] != JobState.SUCCEEDED:
            raise CheckError(f"the {name} run failed: {ended['state_reason']}", self._output_of(name))
        self._require_steps(name, resumed)
        return killed, resumed

    def _run(self, name: str, gpus: tuple[str, ...], *, kill_at: int | None, max_restarts: int) -> dict[str, Any]:
        """Run the program in the folder of that name, and return how it ended."""
        self._made.append(name)
        order = {
            "folder": str(self._records(name)),
            "steps": self._plan.steps,
            "save_at": self._plan.save_at,
            "kill_at": kill_at,
        }
        plan = self._plan.run
        variables = {**plan.variables, **_SYNCHRONOUS, "MUSTER_TRAIN_CHECK": json.dumps(order)}
        restart = plan.spec.restart.model_copy(update={"max_restarts": max_restarts})
        spec = plan.spec.model_copy(update={"restart": restart})
        place = RunFolder(self._folder / name, spec)
        try:
            made = replace(plan, spec=spec, gpus=gpus, variables=variables)
            ended = LocalRun(made, place, _nowhere, _nowhere, self._ask).run()
        finally:
            place.close()
        if self._ask.times:
            raise InterruptedCheckError
        return ended

    def _records(self, name: str) -> Path:
        return self._folder.absolute() / name / _RECORDS

    def _recorded(self, name: str, number: int) -> Attempt | None:
        """Return what an attempt recorded; None if it recorded nothing. Raises CheckError for a torn record."""
        files = sorted(self._records(name).glob(f"rank-*-{number}.jsonl"))
        texts: Mapping[int, str] = {int(path.name.split("-")[1]): path.read_text(encoding="utf-8") for path in files}
        try:
            return parse_attempt(texts) if texts else None
        except RecordError as fault:
            raise CheckError(f"the record of the {name} run is torn: {fault}", "Run the check again.") from fault

    def _raise_without_records(self, name: str, ended: Mapping[str, Any]) -> NoReturn:
        """Raise CheckError for a program that recorded nothing."""
        if ended["state"] != JobState.SUCCEEDED:
            raise CheckError(
                f"the {name} run failed before its first step: {ended['state_reason']}", self._output_of(name)
            )
        raise CheckError(
            "the program ended without train.start, so it has no steps that could be compared",
            "Let it train by `from muster import train`: see docs/quickstart-tenant.md.",
        )

    def _require_steps(self, name: str, attempt: Attempt) -> None:
        if attempt.last_step < self._plan.steps:
            raise CheckError(
                f"the {name} run ended after {max(attempt.last_step, 0)} steps, and the check needs {self._plan.steps}",
                f"Let the program train longer, or choose fewer: --steps {FEWEST_AFTER + 1} at the least.",
            )

    def _output_of(self, name: str) -> str:
        return f"Its output is in {self._folder / name / 'attempts'}."


def _nowhere(*_words: str) -> None:
    """Drop what a run reports: a check reports its own sentences, and logs stay in their files."""
