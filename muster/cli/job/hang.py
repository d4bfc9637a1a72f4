"""``muster hang`` judges a hang from what was kept of it. It needs no server, no GPU and no torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.output import AsJson, Format, Page, Wide, show
from muster.cli.framework.terminal_text import plain_line

if TYPE_CHECKING:
    from muster.cli.job.hang_folder import Bundle
    from watch.verdicts import Verdict

app = typer.Typer(help="Hangs: which rank holds up the others, from dumps and logs.", no_args_is_help=True)
_MOST_NOTES: Final = 20
_ACCEPTED: Final = (
    "It reads host reports (host-NODE.json), flight-recorder dumps whose name ends with the rank (fr-3.json, "
    "nccl_trace_rank_3), logs of ranks (rank-3.log), and kernel logs (dmesg-NODE.log)."
)


@app.callback()
def root() -> None:
    """Help with hangs."""


@app.command("analyze", epilog="Example: `muster hang analyze ./kept-of-the-hang`")
def analyze(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder with reports, dumps and logs.")],
    *,
    as_json: AsJson = False,
    is_wide: Wide = False,
) -> int:
    """Name the rank that caused a hang, from dumps of the flight recorder, logs and host reports in a folder.

    Exit code 0: a cause was found; 1: the files do not name one; 2: DIR is no folder; 6: nothing in it is usable.
    """
    from muster.cli.job.hang_folder import read_bundle
    from watch.forensics.judge import judge_hang

    if not folder.is_dir():
        fault = "is not a folder" if folder.exists() else "does not exist"
        raise CommandError(f"{folder} {fault}", "Name a folder with the files of the hang.", Exit.USAGE)
    bundle = read_bundle(folder)
    if not bundle.num_used:
        notes = "; ".join(bundle.notes[:3])
        raise CommandError(
            f"{folder} holds nothing that can be analysed{f': {plain_line(notes)}' if notes else ''}",
            _ACCEPTED,
            Exit.INVALID,
        )
    verdict = judge_hang(bundle.reports)
    code = Exit.OK if verdict.cause != "unknown" or verdict.ranks else Exit.FAILED
    return show(_page(bundle, verdict, code), Format(as_json=as_json, is_wide=is_wide))


def _page(bundle: "Bundle", verdict: "Verdict", code: Exit) -> Page:
    from watch.forensics.documents import verdict_document

    found: dict[str, Any] = {
        **verdict_document(verdict),
        "transports": list(bundle.transports),
        "notes": list(bundle.notes),
    }
    parts = [verdict.sentence, f"Cause: {verdict.cause}"]
    if verdict.waiting:
        parts.append(f"Waiting: {_ranks(verdict.waiting)}")
    parts += _section("Evidence:", verdict.evidence)
    parts += _section("Transport of NCCL:", bundle.transports)
    left_out = bundle.notes[_MOST_NOTES:]
    more = (f"and {len(left_out)} more, with --json",) if left_out else ()
    parts += _section("Not used, or used in part:", (*bundle.notes[:_MOST_NOTES], *more))
    return Page(found, [plain_line(part) for part in parts], code=code)


def _section(title: str, lines: tuple[str, ...]) -> list[str]:
    return [title, *(f"  - {line}" for line in lines)] if lines else []


def _ranks(numbers: tuple[int, ...]) -> str:
    """Return ranks as text, with ranges: ``0-2, 4``."""
    parts: list[str] = []
    start = end = numbers[0]
    for number in (*numbers[1:], None):
        if number == end + 1:
            end = number
            continue
        parts.append(str(start) if start == end else f"{start}-{end}")
        if number is not None:
            start = end = number
    return ", ".join(parts)
