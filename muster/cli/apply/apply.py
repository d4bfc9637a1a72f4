"""``muster apply``."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from muster.cli.apply.planning import Planning
from muster.cli.apply.present import read_present
from muster.cli.apply.reading import STDIN, Wanted, read_documents, require_none
from muster.cli.apply.steps import Action, Requesting, Step
from muster.cli.framework.exits import CommandError, Exit, exit_of
from muster.cli.framework.field_help import field_help
from muster.cli.framework.output import AsJson, AsYaml, Format, Page, show
from muster.cli.framework.profile import open_client
from muster.cli.framework.tables import printable
from muster.client.transport import Problem

if TYPE_CHECKING:
    from muster.client.rest import RestClient

_PAST_ACTIONS: Final = {Action.CREATE: "created", Action.CHANGE: "changed", Action.RELEASE: "released"}
_OF_OTHERS: Final = frozenset({"beyond_fleet", "no_tree"})
"""Refusals of a change that another change of the same files may lift: a lower guarantee, another place."""
_DENIED: Final = frozenset({401, 403})
_OF_TIERS: Final = frozenset({"quota", "rates"})
"""What names tiers, which a new policy may bring: not tried before that policy is active."""
PRUNED: Final = ("cordon",)


def apply(
    files: Annotated[
        list[Path], typer.Option("--file", "-f", help="A file, a folder of files, or - for stdin; may be repeated.")
    ],
    reason: Annotated[str, typer.Option(help=field_help("reason"))] = "",
    prune: Annotated[
        list[str] | None, typer.Option(help="A kind whose objects are ended if no document has them: cordon.")
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make the changes without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the differences, and change nothing.")] = False,
    as_json: AsJson = False,
    as_yaml: AsYaml = False,
) -> int:
    """Make tenants, quotas, cordons, rate cards and the policy as files say; the differences are shown first.

    Nothing is changed if a document has a fault. What no document names stays as it is. Exit code 5: something was
    changed by others meanwhile, 6: a document has a fault.
    """
    shape = Format(as_json, as_yaml)
    if unknown := sorted({*(prune or [])} - {*PRUNED}):
        words = f"--prune {unknown[0]}: only {', '.join(PRUNED)} can be pruned"
        raise CommandError(words, "Tenants, quotas, rate cards and policies are never removed.", Exit.USAGE)
    wanted = read_documents(files)
    with open_client(as_operator=True) as client:
        find = partial(_steps, client, wanted, prunes_cordons=bool(prune))
        found = find()
        notes = _require_tried(client, found, reason or "a dry run")
        if dry_run or not _changes(found):
            return show(_page(found, notes, is_applied=False), shape)
        if not reason.strip():
            raise CommandError("the changes need a --reason", "It is recorded in the audit.", Exit.USAGE)
        is_quiet = as_json or as_yaml
        if not is_quiet:
            show(_page(found, notes, is_applied=False), shape)
        _require_agreed(yes=yes, num_changes=len(_changes(found)), reads_stdin=Path(STDIN) in files)
        _require_same(found, again := find())
        _make(client, again, reason, is_quiet=is_quiet)
    return show(_page(again, notes, is_applied=True), shape) if is_quiet else Exit.OK


def _steps(client: "RestClient", wanted: Sequence[Wanted], *, prunes_cordons: bool) -> list[Step]:
    """Return the steps by what the control plane has now. Raises ``CommandError`` with every fault."""
    planning = Planning(wanted, read_present(client, wanted, reads_cordons=prunes_cordons))
    steps = planning.steps(prunes_cordons=prunes_cordons)
    require_none(planning.faults)
    return steps


def _run(client: "RestClient", steps: Sequence[Step], reason: str, *, is_dry_run: bool) -> Requesting:
    needs_tenants = any(step.kind in {"tenant", "quota"} for step in steps)
    ids = {tenant["name"]: tenant["id"] for tenant in client.tenants()} if needs_tenants else {}
    return Requesting(client, reason, ids, is_dry_run=is_dry_run)


def _changes(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.request is not None]


def _require_tried(client: "RestClient", steps: Sequence[Step], reason: str) -> Sequence[str]:
    """Require that the server would make each change, by a dry run of each that depends on no other one.

    Return what its answers say besides.

    Raises:
        CommandError: with all that it refuses.
    """
    changes = _changes(steps)
    run = _run(client, changes, reason, is_dry_run=True)
    is_policy_new = any(step.kind == "policy" for step in changes)
    faults = []
    for step in changes:
        if (
            step.request is None
            or not step.needs <= run.tenant_ids.keys()
            or (is_policy_new and step.kind in _OF_TIERS)
        ):
            continue
        try:
            step.request(run)
        except Problem as problem:
            codes = {str(each.get("code")) for each in (problem.document or {}).get("errors", ())}
            if problem.status in _DENIED or problem.status >= 500:
                raise
            if not (codes and codes <= _OF_OTHERS and len(changes) > 1):
                place = step.title if step.source is None else f"{step.source.where}, {step.title}"
                faults.append(f"{place}: {problem.detail}")
    require_none(faults)
    return run.notes


def _require_agreed(*, yes: bool, num_changes: int, reads_stdin: bool) -> None:
    """Ask a person at a terminal. Raises ``CommandError`` if there is no terminal or the answer is no."""
    if yes:
        return
    if reads_stdin or not sys.stdin.isatty():
        words = "nothing was changed: there is no terminal to ask at"
        raise CommandError(words, "--yes makes the changes without asking.", Exit.USAGE)
    if not typer.confirm(f"Make {_counted(num_changes, 'change')}?", err=True):
        raise CommandError("nothing was changed, as you answered", code=Exit.FAILED)


def _require_same(shown: Sequence[Step], now: Sequence[Step]) -> None:
    """Require that the differences are still the shown ones. Raises ``CommandError`` with the objects that changed."""
    seen, found = {step.seen for step in shown}, {step.seen for step in now}
    others = sorted({step.title for step in (*shown, *now) if step.seen in seen ^ found})
    if others:
        words = f"nothing was changed: others changed {', '.join(others)} meanwhile"
        raise CommandError(words, "Apply the files again, and look at the new differences.", Exit.CONFLICT)


def _make(client: "RestClient", steps: Sequence[Step], reason: str, *, is_quiet: bool) -> None:
    """Make the changes in order. Raises ``CommandError`` at the first one that fails, with what was made before it."""
    changes = _changes(steps)
    run = _run(client, changes, reason, is_dry_run=False)
    for number, step in enumerate(changes):
        try:
            if step.request is not None:
                step.request(run)
        except (Exception, KeyboardInterrupt) as fault:
            code, words, advice = exit_of(fault)
            made = f"changes made before it: {number} of {len(changes)}"
            before = "Correct the document." if code is Exit.INVALID else advice
            advice = f"{before} The same command again makes the rest.".strip()
            raise CommandError(f"{step.title}: {words}; {made}", advice, code) from fault
        if not is_quiet:
            typer.echo(printable(f"{_PAST_ACTIONS[step.action]} {step.title}"))


def _page(steps: Sequence[Step], notes: Sequence[str], *, is_applied: bool) -> Page:
    lines = [line for step in steps for line in _lines(step)]
    document = {"steps": [step.view() for step in steps], "notes": list(notes), "is_applied": is_applied}
    return Page(document, [*lines, *map(printable, notes), _summary(steps)])


def _lines(step: Step) -> list[str]:
    return [
        f"{printable(step.title)}: {step.action}",
        *(f"  {printable(each.words())}" for each in step.differences),
    ]


def _summary(steps: Sequence[Step]) -> str:
    counts: dict[Action, int] = {}
    for step in steps:
        counts[step.action] = counts.get(step.action, 0) + 1
    if counts.keys() <= {Action.UNCHANGED}:
        return f"no changes: {_counted(len(steps), 'object')} as the files say"
    said = [f"{counts[each]} to {each}" for each in _PAST_ACTIONS if each in counts]
    said += [f"{counts[Action.UNCHANGED]} unchanged"] if Action.UNCHANGED in counts else []
    return ", ".join(said)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
