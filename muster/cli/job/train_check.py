"""``muster train check`` compares a killed and resumed run of a program with an undisturbed one, bit for bit."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.field_help import field_help
from muster.cli.framework.output import AsJson, Format, Page, Table, show
from muster.cli.framework.tables import Column
from muster.cli.job.environments import Venv, environment_of
from muster.cli.job.program_options import name_of, program_of
from muster.cli.job.run import FOLDER, checked_spec, plan_of, print_note, require_startable, signals_handled
from muster.cli.job.run_host import gpus_here

if TYPE_CHECKING:
    from watch.reproducibility.judge import Judgement
    from workers.local.program_check import Checked, CheckPlan

_MOST_NAMED: Final = 3
_COLUMNS: Final = (
    Column("STEP", lambda row: row["step"]),
    Column("LOSS", lambda row: row["loss"]),
    Column("AFTER THE RESUME", lambda row: row["resumed_loss"]),
    Column("DIFFERS", lambda row: _named(row["differs"]), wide=lambda row: ", ".join(row["differs"]), is_text=True),
)


def check(
    program: Annotated[list[str], typer.Argument(help=field_help("script", "SCRIPT [ARGS…]."))],
    steps: Annotated[int, typer.Option(min=3, max=10_000, help="Compared steps.")] = 12,
    at: Annotated[int | None, typer.Option(min=1, help="The step that is saved. Default: 5, or the middle.")] = None,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, max=64, help=field_help("ranks_per_node", "Default: one a GPU, or one without GPUs.")),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="So many of this machine's. Default: all it has.")] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="A variable that decides nothing, such as a sum for the log; repeatable.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help=field_help("env", "KEY=VALUE, may be repeated."))] = None,
    python: Annotated[Path | None, typer.Option(help=field_help("python", "It has torch. Default: this one."))] = None,
    venv: Venv = None,
    folder: Annotated[
        Path | None, typer.Option(help="For records and logs, a new one. Default: muster-runs/check-NAME/N here.")
    ] = None,
    *,
    as_json: AsJson = False,
) -> int:
    """Check that a program resumes exactly: some steps straight, and again with a kill -9 and a resume in the middle.

    Compared bit for bit, step by step: loss, parameters, buffers, optimizer, scheduler, random numbers, samples, and
    the program's own variables. It names the first step and tensor that differ, why, and what to change.
    Exit codes: 0 the same, 1 they differ, 2 it cannot be checked.
    """
    found = gpus_here(gpus)
    spec = checked_spec(
        {
            "name": name_of(program[0]),
            "program": program_of(
                program, env or [], python, None, environment_of(venv, None, None, None, None), is_command=False
            ),
            "shape": {"ranks_per_node": ranks or max(1, len(found))},
            "restart": {"max_restarts": 1},
        }
    )
    require_startable(spec)
    from workers.local.program_check import CheckPlan

    plan = CheckPlan(plan_of(spec, found, 0.0), steps, _save_at(steps, at), frozenset(ignore or ()))
    place = folder or _fresh_folder(spec.name)
    return show(_page(_checked(plan, place), plan, place), Format(as_json))


def _save_at(steps: int, at: int | None) -> int:
    """Return the step that is saved. Raises CommandError if too few follow it."""
    from workers.local.program_check import FEWEST_AFTER

    chosen = min(5, steps // 2) if at is None else at
    if chosen + FEWEST_AFTER > steps:
        raise CommandError(
            f"--at {chosen}: {FEWEST_AFTER} steps must follow the saved one, and --steps is {steps}",
            f"Choose --at {steps - FEWEST_AFTER} at the most, or more steps.",
            Exit.USAGE,
        )
    return chosen


def _fresh_folder(name: str) -> Path:
    """Return a new folder, since a run in an old one would continue it."""
    return next(path for number in count(1) if not (path := FOLDER / f"check-{name}" / str(number)).exists())


def _checked(plan: "CheckPlan", folder: Path) -> "Checked":
    """Make the check. Raises CommandError if it cannot be made."""
    from workers.local.local_run import Ask
    from workers.local.program_check import CheckError, InterruptedCheckError, ProgramCheck

    ask = Ask()
    if folder.exists() and any(folder.iterdir()):
        raise CommandError(f"--folder {folder} is not empty", "Choose a new one: a check begins at step 0.", Exit.USAGE)
    try:
        with signals_handled(ask):
            return ProgramCheck(plan, folder.absolute(), print_note, ask).run()
    except CheckError as fault:
        raise CommandError(str(fault), fault.suggestion, Exit.USAGE) from fault
    except InterruptedCheckError:
        raise CommandError("interrupted", "", Exit.INTERRUPTED) from None
    except OSError as fault:
        words = f"{folder}: {fault.strerror or fault}"
        raise CommandError(words, "Choose another --folder, or free space.", Exit.USAGE) from fault


def _page(checked: "Checked", plan: "CheckPlan", folder: Path) -> Page:
    from watch.reproducibility.table import rows

    judgement = checked.judgement
    table = [asdict(row) for row in rows(checked.runs, plan.ignored)]
    document = {
        **asdict(judgement),
        "save_at": plan.save_at,
        "runs": list(checked.made),
        "folder": str(folder),
        "table": table,
    }
    code = Exit.OK if judgement.is_same else Exit.FAILED
    return Page(document, [Table(_COLUMNS, table, indent=""), *_words(judgement, plan.save_at)], code)


def _words(judgement: "Judgement", save_at: int) -> Iterator[str]:
    """Yield the sentences below the table."""
    if judgement.is_same:
        yield f"the same: {judgement.num_steps} steps, bit for bit, with a kill and a resume after step {save_at}"
        return
    ranks = ", ".join(map(str, judgement.ranks))
    yield f"differs at step {judgement.step}: {judgement.tensor} (rank {ranks})"
    yield f"{judgement.cause}: {judgement.why}."
    yield f"{judgement.remedy}."


def _named(differs: tuple[str, ...] | list[str]) -> str:
    named = ", ".join(differs[:_MOST_NAMED])
    return f"{named} and {len(differs) - _MOST_NAMED} more" if len(differs) > _MOST_NAMED else named
